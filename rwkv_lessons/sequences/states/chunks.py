"""Which chunks there are in a call whose lengths only the GPU knows, as a Triton kernel.

Sequences of more than LONGEST tokens go in chunks of C tokens. Their chunks are numbered one after
the other, so that memory is needed for as many as the call's tokens can fill, however many short
sequences are beside them.
"""

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch

BLOCK = 128  # sequences, or chunks, at a time


def count_chunks(total, sequences, C, longest):
    """The most chunks that `total` tokens of so many sequences are, of more than `longest` each."""
    return total // C + min(sequences, total // (longest + 1))


@triton.jit
def chunks_of(cu_seqlens, indices, o_n, m_n, C: tl.constexpr, LONGEST: tl.constexpr):
    """First token, end and chunks of sequences; 0 chunks if it is short or has no slot."""
    b_start = tl.load(cu_seqlens + o_n, m_n, 0).to(tl.int64)
    b_end = tl.load(cu_seqlens + o_n + 1, m_n, 0).to(tl.int64)
    b_slot = tl.load(indices + o_n, m_n, -1)
    is_long = m_n & (b_end - b_start > LONGEST) & (b_slot >= 0)
    return b_start, b_end, tl.where(is_long, (b_end - b_start + C - 1) // C, 0).to(tl.int32)


@assembled
@triton.jit(do_not_specialize=["sequences", "count"])
def chunks_kernel(
    cu_seqlens, indices, first, bounds, sequences, count,
    C: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """first: the first chunk of each sequence, `[S]`, int32.

    bounds: of each of `count` chunks its first token and the end of its sequence, `[count, 2]`,
    int64; twice 0 of those that are not there, which the last program writes.
    """
    i_n = tl.program_id(0)
    b_before = tl.zeros([BLOCK], tl.int32)
    for i in range(0, i_n, BLOCK):
        o_n = i + tl.arange(0, BLOCK)
        b_before += chunks_of(cu_seqlens, indices, o_n, o_n < i_n, C, LONGEST)[2]
    before = tl.sum(b_before, 0)
    start, end, n = chunks_of(cu_seqlens, indices, i_n, i_n < sequences, C, LONGEST)
    if i_n < sequences:
        tl.store(first + i_n, before)
    else:
        start, end, n = start * 0, end * 0, count - before
    for i in range(0, n, BLOCK):
        o_c = i + tl.arange(0, BLOCK)
        b_start = tl.minimum(start + o_c.to(tl.int64) * C, end)
        at, m_c = bounds + (before + o_c).to(tl.int64) * 2, o_c < n
        tl.store(at, b_start, m_c)
        tl.store(at + 1, tl.zeros([BLOCK], tl.int64) + end, m_c)


def run_chunks(cu_seqlens, indices, first, bounds, C, longest):
    """Launches the kernel."""
    launch(
        chunks_kernel, len(indices) + 1, 1, (cu_seqlens, indices, first, bounds),
        (len(indices), len(bounds)), (C, longest, BLOCK),
    )  # fmt: skip


def carved(workspace, shapes):
    """Tensors in a workspace of bytes: (shape, dtype) of each; and the bytes that they take.

    Args:
        workspace: uint8, or None to count alone.
    """
    tensors, at = [], 0
    for shape, dtype in shapes:
        size = dtype.itemsize
        for n in shape:
            size *= n
        if workspace is not None:
            tensors.append(workspace[at : at + size].view(dtype).view(shape))
        at += -(-size // 256) * 256  # as torch aligns tensors
    return tensors, at
