"""What to look for when a case fails: by symptom, where the exercise's own `symptoms` say nothing.

A hint that fits one exercise only belongs there, in the solution file.
"""

HINTS = {
    "by hand": "Compute two tokens on paper: o[0] = Σ r·u·k·v, then the state is k·v.",
    "state": "Is the state used first, then multiplied by the decay, and only then joined by k·v?",
    "head": "r, k, v, decay and u all depend on h, and each head has a state of its own.",
    "batch": "Does every (b, h) start from zeros of its own, and read its own tokens?",
    "tail": "There may be more threads than outputs: the surplus ones must write nothing.",
    "bounds": "Which index belongs to which axis, and from where to where does it run?",
    "owner": "Threads that write one element of global memory overwrite each other: which thread "
    "owns it?",
    "unset": "Memory of a thread is not zero at the start: set every element before you read it.",
    "divergent": "A barrier waits for every thread of the block: none may return before it, or go "
    "around it in an `if`.",
    "order": "The answer depends on which thread runs first: what one writes, others read only "
    "after a barrier, and overwrite only after the next.",
    "alignment": "A 16-byte access starts at a multiple of 16 bytes: of 4 floats.",
    # With a decay per token, and states in and out.
    "decay": "w is the log of the decay: the state is multiplied by exp(w[b, t, h, i]).",
    "state in": "Does every column start from its own part of s0[b, h]?",
    "state out": "s1 is the state after the last token: written once, after the loop over t.",
    "last": "ds1 is the gradient of the state after the last token: G starts there, not at zero.",
    "chunk": "The last chunk may be shorter: it ends at token T − 1.",
    # With more of something than a kernel may have been written for.
    "long": "Right for few tokens: is there a number where T, or a number of chunks, belongs?",
    "many": "Right for few programs: is there a number where B·H, K or V belongs?",
    "many elements": "Right for few elements: is a number of them kept in 8 or 16 bits, or written "
    "where a size belongs?",
    # In Triton.
    "mask": "The last block reaches past the end of a tensor: mask its surplus lanes, in loads and "
    "in stores.",
    "origin": "None of its lanes is inside: which axes has this tensor, and where does this "
    "program's part of it begin?",
    "programs": "Programs run in any order: what one writes, no other may read or write.",
    "blocks": "A program's own keys start at i_k · BK, its own values at i_v · BV.",
    "own blocks": "Right for small sizes, wrong for the lesson's own: is there a number where BK, "
    "BT or another size belongs?",
    "never written": "Which program should store this element? Look for its tl.store, at where "
    "each one's indices start, and at the mask.",
    "undefined": "tl.load(pointer, mask, 0): the third argument is what masked lanes hold.",
    "changed input": "Others read it after you: work on a copy, and mind operations that end in _.",
    "loop over tokens": "All tokens of a chunk at once: they are rows of a matrix.",
    "loop over heads": "All heads at once: leading axes of a product, or an axis of an einsum.",
    "16 bits": "What is loaded becomes float32 before it is computed with, tl.load(…)"
    ".to(tl.float32), and decays, sums and states stay float32 tiles. Only operands of tl.dot "
    "have the type of v.",
    "integers": "// and ceil_div keep integers; / and np.ceil make floats.",
    "device": "torch.empty_like(x), x.new_empty(…) and device=x.device make tensors where x is.",
    "filled": "Which thread writes this element of shared memory, and is there a barrier between "
    "that and this line?",
    "endless": "Does what the loop waits for come nearer each time?",
    "float64": "Which operand is a float64? Sums and states of this lesson are float32.",
    "type of an output": "The kernel's docstring has the types of what it writes: x.new_empty(…) "
    "and torch.empty_like(x) take the type of x, dtype=torch.float32 sets another.",
    "operands": "Both operands of tl.dot have one type, that of what is loaded: x.to(b_v.dtype).",
    "out_dtype": "tl.dot without out_dtype, or with tl.float32, and an acc of float32; round what "
    "comes out, if at all.",
    "input_precision": 'input_precision="tf32x3", or "ieee", in each tl.dot keeps float32\'s bits.',
}
