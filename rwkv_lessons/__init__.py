"""Kernels from the RWKV lessons. One folder per operation, in it one folder per way of computing.

    wkv5/ wkv6/   linear attention of RWKV-5 and RWKV-6: a matrix state with a decay per channel,
                  the same for all tokens, or one for every token
    timex/        the time mixing of RWKV-v2 and v3: a convolution as long as the sequence
    wkv7/         linear attention of RWKV-7: each token also corrects what the state holds
    mla/          multi-head latent attention: prompts, and decoding from a cache of latents
    interop/      adapters: the functions of other packages, and models of transformers
    runtime/      compiling and launching kernels, the assembler, what each GPU has
    inputs.py     realistic inputs for every operation

    operations/   the one table: shapes, work, inputs, reference, ladders, records of each operation
    records/      what was measured, on which GPU, of which code
    verify/       python -m rwkv_lessons.verify: is every kernel right on this GPU?
    bench/        python -m rwkv_lessons.bench: time an operation and record it
    report/       writes the tables and figures of README and docs from the records
    lab/          what the lessons teach with: course, evidence, simulator, machine_code, pictures
    course.py     the `lessons` command

docs/architecture.md has who imports whom, and which files to open for a change.

Letters, the same everywhere:

    B batch   T tokens   H heads   N head size (K, V where key and value sizes differ)
    r k v     receptance, key, value, [B, T, H, N]
    w         log decay, at most 0: the state is multiplied by exp(w)
    u         bonus of the current token, [H, N]
    a b       what a token reads the state with, and where it writes what it read, [B, T, H, N]
    o         output, [B, T, H, N]
    s0 s1     state before and after, [B, H, K, V], float32, keys × values
    d…        gradient of …

In time-x, C are channels, k and o are `[B, C, T]`, and w `[C, T]` is a weight per distance.

Multi-head latent attention has its own:

    M N       query tokens, tokens in the cache
    K V       sizes of a key without rope, and of a value
    R P       latent rank, rope size

In numba kernels `b h t i j` are indices (i keys, j values) and `s_…` are shared arrays. In Triton
kernels `i_…` are indices, `o_…` offsets, `m_…` masks, `b_…` blocks in registers, `BT BK BV` block
sizes; other capitals are compile-time flags. A *sweep* goes through the tokens in order, a *reverse
sweep* from the last to the first; a *chunk* is some tokens that become matrix products, a *segment*
the tokens of a sequence that one program has, a *checkpoint* a state saved for the gradients.
"""

__version__ = "0.1.0"
