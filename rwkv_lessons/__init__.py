"""The kernels of the RWKV lessons. One folder per operation, with one folder per method in it.

    wkv5/ wkv6/   linear attention of RWKV-5 and RWKV-6: a matrix state with a decay per channel,
                  the same for all tokens (5) or one for each token (6)
    wkv7/         linear attention of RWKV-7: each token also corrects what the state holds
    timex/        the time mixing of RWKV-v2 and v3: a convolution as long as the sequence
    mla/          multi-head latent attention, for prompts and for decoding from a latent cache
    sequences/    code that RWKV-5, RWKV-6 and RWKV-7 share; states/: a pool of states for serving
    distributed/  one sequence split over many GPUs
    models/       a language model on these kernels
    interop/      adapters for the functions of other packages, and for models of transformers
    runtime/      compiling and launching kernels, the assembler, the limits of each GPU
    inputs.py     realistic inputs for every operation

    operations/   the central table: shapes, work, inputs, reference, ladders, records
    records/      measurements, with their GPU and a fingerprint of the code
    verify/       python -m rwkv_lessons.verify: checks every kernel on this GPU
    bench/        python -m rwkv_lessons.bench: times an operation and records it
    report/       writes the tables and figures of README and docs from the records
    lab/          the course: checks, evidence, pictures
    course.py     the `lessons` command

Import a function from its folder, `from rwkv_lessons.wkv6 import wkv6`: what `from rwkv_lessons
import wkv6` gives is the folder, a module, which cannot be called.

docs/architecture.md shows who imports whom, and which files to open for a change.

Letters, the same everywhere:

    B batch   T tokens   H heads   N head size (K, V where key and value sizes differ)
    r k v     receptance, key, value, [B, T, H, N]
    w         log decay, at most 0: the state is multiplied by exp(w)
    u         bonus of the current token, [H, N]
    a b       a token reads the state with a and adds the result along b, [B, T, H, N] (RWKV-7)
    o         output, [B, T, H, N]
    s0 s1     state before and after, [B, H, K, V], float32, keys × values
    d…        gradient of …

In time-x, C is the number of channels, k and o are `[B, C, T]`, and w `[C, T]` is a weight per
distance.

Multi-head latent attention has letters of its own:

    M N       query tokens, tokens in the cache
    K V       sizes of a key without rope, and of a value
    R P       latent rank, rope size

In numba kernels, `b h t i j` are indices (i for keys, j for values) and `s_…` are shared arrays. In
Triton kernels, `i_…` are indices, `o_…` offsets, `m_…` masks, `b_…` blocks in registers, and
`BT BK BV` block sizes; other capitals are compile-time flags. A *sweep* goes through the tokens in
order, a *reverse sweep* from the last to the first. A *chunk* is a group of tokens computed with
matrix products, a *segment* is the part of a sequence that one program processes, and a
*checkpoint* is a state saved for the gradients.
"""

__version__ = "0.1.0"
