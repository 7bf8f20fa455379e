"""Kernels from the RWKV lessons. One folder per operation, one file per way of computing it.

    wkv5/     linear attention of RWKV-5: a matrix state with one decay per channel
    wkv6/     linear attention of RWKV-6: a decay for every token and channel
    mla/      multi-head latent attention: prompts, and decoding from a cache of latents
    interop/  the functions that other people's code already calls
    runtime/  launching and compiling kernels of numba and Triton; the GPU's limits
    inputs.py realistic inputs for every operation
    operations.py  the table of operations, and how to add one (entries.py, work.py)
    records/  what was measured, on which GPU, of which code
    lab/      what the lessons teach with: check, trace, assembly, roofline, plots
    bench/    python -m rwkv_lessons.bench: time an operation and record it
    report/   the tables and figures of the README and of docs/, from the records
    verify/   python -m rwkv_lessons.verify: is every kernel right on this GPU, with every option?

Letters, the same everywhere:

    B batch   T tokens   H heads   N head size (K, V where key and value sizes differ)
    r k v     receptance, key, value, [B, T, H, N]
    w         log decay, at most 0: the state is multiplied by exp(w)
    u         bonus of the current token, [H, N]
    o         output, [B, T, H, N]
    s0 s1     state before and after, [B, H, K, V], float32, keys × values
    d…        gradient of …

In numba kernels `b h t i j` are indices (i keys, j values) and `s_…` are shared arrays. In Triton
kernels `i_…` are indices, `o_…` offsets, `m_…` masks, `b_…` blocks in registers.
"""
