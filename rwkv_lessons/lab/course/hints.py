"""What to look for when a case fails: by symptom, where the exercise's own `symptoms` say nothing.

A hint that fits one exercise only belongs there, in the solution file.
"""

import re

HINTS = {
    "by hand": "Compute two tokens on paper. The first finds an empty state: o_j = "
    "Σ_i r_i·u_i·k_i·v_j. After it, S_ij = k_i·v_j.",
    "state": "For each token: is the state used first, then multiplied by the decay, and only "
    "then is k·v added?",
    "head": "r, k, v, decay and u, if there is one, all depend on h, and each head has its own "
    "state.",
    "batch": "Does every (b, h) start from its own zeros and read its own tokens?",
    "tail": "There may be more threads than outputs: the extra ones must write nothing.",
    "bounds": "Which index belongs to which axis, and over which range does it run?",
    "owner": "Threads that write the same element of global memory overwrite each other: which "
    "thread owns it?",
    "unset": "A thread's memory is not zero at the start: set every element before you read it.",
    "divergent": "A barrier waits for every thread of the block: no thread may return before it "
    "or skip it in an `if`.",
    "order": "The answer depends on which thread runs first. Read what another thread wrote only "
    "after a barrier, and overwrite it only after the next barrier.",
    "alignment": "A 16-byte access must start at a multiple of 16 bytes, which is 4 floats. A "
    "shared array starts at one if it is declared with alignment=16.",
    # With a decay per token, and states in and out.
    "decay": "w is the logarithm of the decay: multiply the state by exp(w[b, t, h, i]).",
    "state in": "Does every column start from its own part of s0[b, h]?",
    "state out": "s1 is the state after the last token: write it once, after the loop over t.",
    "last": "ds1 is the gradient of the state after the last token: G starts there, not at zero.",
    "chunk": "The last chunk may be shorter: it ends at token T − 1.",
    # With more of something than a kernel may have been written for.
    "long": "It is right for few tokens: is there a constant where T, or the number of chunks, "
    "belongs?",
    "many": "It is right for few program instances: is there a constant where B·H, K or V belongs?",
    "many elements": "It is right for few elements: is the number of elements stored in 8 or 16 "
    "bits, or a constant used instead of a size?",
    "many sizes": "It is right for the cases before this one. Compute this call by hand: is there "
    "a constant where a parameter belongs, or a rounding in the wrong direction?",
    # In Triton.
    "mask": "The last block reaches past the end of a tensor: mask its surplus lanes, in loads and "
    "in stores. If they are masked: do the strides fit the axis?",
    "origin": "None of its lanes is inside the tensor: which axes does this tensor have, and "
    "where does this program instance's part begin?",
    "programs": "Program instances run in any order: none may read or write what another writes.",
    "blocks": "A program instance's own keys start at i_k · BK, its own values at i_v · BV.",
    "own blocks": "Right for small sizes, wrong for the lesson's own: is there a number where BK, "
    "BT or another size belongs?",
    "never written": "Who should store this element? Look for the store, at where each one's "
    "indices start, and at the mask or guard around it.",
    "adds to memory": "Fresh memory holds anything. Keep the sum in a variable of the thread, and "
    "store it with =.",
    "undefined": "tl.load(pointer, mask, 0): the third argument is what masked lanes hold.",
    "changed input": "Others read it after you: write to an output or a copy; in torch, mind "
    "operations that end in _.",
    # Of an answer, in whatever case it shows.
    "axes": "Two axes are swapped: which index belongs to which axis?",
    "leading axes": "The axes in front are missing: each batch row or head has a result of its "
    "own. A matrix that is the same for all of them, such as an identity, is expanded first.",
    "nothing": "Does the function end with a return, in the outermost block?",
    "shape": "How many axes does the result have, and how long is each? The docstring says.",
    "loop over tokens": "All tokens of a chunk at once: they are rows of a matrix.",
    "loop over heads": "Process all heads at once: as leading axes of a product, or as an axis "
    "of an einsum.",
    "16 bits": "Convert what you load to float32 before computing with it, "
    "tl.load(…).to(tl.float32), and keep decays, sums and states as float32 tiles. Only operands "
    "of tl.dot have the type of v.",
    "integers": "// and ceil_div give integers; / and np.ceil give floats.",
    "device": "torch.empty_like(x), x.new_empty(…) and device=x.device create tensors on the "
    "device of x.",
    "filled": "Which thread writes this element of shared memory, and is there a barrier between "
    "that write and this line?",
    "endless": "Does every iteration bring the loop closer to its end?",
    "float64": "Which operand is float64? The sums and states of this lesson are float32.",
    "type of an output": "The kernel's docstring gives the types of its outputs: x.new_empty(…) "
    "and torch.empty_like(x) use the type of x, dtype=torch.float32 sets another.",
    "operands": "Both operands of tl.dot have the same type, that of the loaded values: "
    "x.to(b_v.dtype).",
    "out_dtype": "Use tl.dot without out_dtype, or with tl.float32, and an acc of float32; round "
    "only the result, if at all.",
    # Of an exception that Python, torch or Triton raises.
    "shapes": "Write the shape of each operand beside the line. x[:, None] adds an axis at the "
    "end, x[None, :] one in front; .mT and tl.trans swap the last two.",
    "index of a tile": "A tile of Triton cannot be indexed by a number. A mask and a sum select a "
    "row: tl.sum(tl.where(o[:, None] == i, x, 0), 0).",
    "matrix product": "In Triton a matrix product is tl.dot(x, y).",
    "empty grid": "How many program instances does each axis need? / and // of a small size give "
    "none: ceil_div rounds up.",
    "endless recursion": "A function that calls itself must return without a call in the smallest "
    "case. Which sizes does each call get?",
    "input_precision": 'input_precision="tf32x3", or "ieee", in each tl.dot keeps float32\'s bits.',
}

# What an exception says → the hint for it.
RAISED = {
    r"must match the size of tensor|Sizes of tensors must match|same number of dimensions|"
    r"shapes cannot be multiplied|size for first two dimensions|could not be broadcast|"
    r"make_shape_compatible|expanded size of the tensor|inconsistent tensor size|"
    r"matmul: Input operand|expects each tensor to be equal size|"
    r"equal reduction dimensions": "shapes",
    r"'int' object is not iterable, in program|unsupported tensor index": "index of a tile",
    r"for @: 'tensor'": "matrix product",
    r"maximum recursion depth": "endless recursion",
    r"^grid is .*at least 1": "empty grid",
}


def of_error(error: Exception) -> str | None:
    """The hint for what an exception says; None if it is none of `RAISED`."""
    return next((HINTS[x] for words, x in RAISED.items() if re.search(words, str(error))), None)
