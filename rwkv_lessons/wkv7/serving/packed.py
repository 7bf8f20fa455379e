"""Prompts and single tokens of many sequences in one call, on states of a pool."""

import functools

import torch

from ...runtime.arguments import check_tensor
from ...runtime.operators import call
from ...runtime.packages import TRITON
from ...runtime.plain import launches_directly
from ...sequences.arguments import wants_gradients
from ...sequences.states.pool import (
    DTYPES,
    check_ends,
    check_indices,
    check_options,
    check_pool,
)
from ..arguments import check_call
from .in_torch import serving_in_torch


@functools.cache
def _kernels():
    """The launches of tokens and of chunks, and when to take these; Triton is imported."""
    from .prompts import LONGEST, goes_in_chunks, run_prompts
    from .tokens import run_tokens

    return run_tokens, run_prompts, goes_in_chunks, LONGEST


def _scratch_bytes(r, V, sequences):
    """What `run_prompts` needs."""
    from .prompts import workspace_of

    return workspace_of(r, V, sequences)[1]


def serving(
    r, w, k, v, a, b, w0, state_pool, indices, cu_seqlens, seeds, workspace, scale, decay, longest
):  # fmt: skip
    """On a GPU; heads of more keys than a program holds in torch, which waits for the GPU."""
    inputs = (r, w, k, v, a, b, w0, state_pool, indices, cu_seqlens, seeds)
    if not TRITON or r.shape[3] > 256:
        return serving_in_torch(*inputs, scale, decay)
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return serving(*inputs, workspace, scale, decay, longest)
    run_tokens, run_prompts, goes_in_chunks, stepped = _kernels()
    tensors = [x.contiguous() for x in (r, w, k, v, a, b)]
    w0 = None if w0 is None else w0.contiguous()
    o = torch.empty_like(tensors[3])
    in_chunks = longest > stepped and goes_in_chunks(r)
    run_tokens(
        tensors, w0, state_pool, indices, cu_seqlens, seeds, None, o, 0, scale, decay,
        longest=stepped if in_chunks else 0, one_token=longest == 1,
    )  # fmt: skip
    if in_chunks:
        if workspace is None:
            needed = _scratch_bytes(r, v.shape[3], len(indices))
            workspace = torch.empty(needed, dtype=torch.uint8, device=r.device)
        run_prompts(
            tensors, w0, state_pool, indices, cu_seqlens, seeds, o, workspace, scale, decay, longest
        )
    torch.autograd.graph.increment_version(state_pool)
    return o


def on_any_device(*arguments):
    """`serving` in torch: of its arguments all but the workspace and the bound."""
    *inputs, _, scale, decay, _ = arguments
    return serving_in_torch(*inputs, scale, decay)


def serving_shapes(r, w, k, v, *_):
    """What `serving` returns, without values."""
    return torch.empty_like(v, memory_format=torch.contiguous_format)


NAME = "rwkv_lessons::wkv7_serving"
torch.library.define(
    NAME,
    f"({', '.join(f'Tensor {x}' for x in 'rwkvab')}, Tensor? w0, Tensor(a!) state_pool,"
    " Tensor indices, Tensor cu_seqlens, Tensor? seeds, Tensor(b!)? workspace, float scale,"
    " str decay, int longest) -> Tensor",
)
torch.library.impl(NAME, "CUDA", serving)
torch.library.impl(NAME, "CPU", on_any_device)
torch.library.register_fake(NAME, serving_shapes)


def check_serving(r, w, k, v, a, b, w0, state_pool, indices, S, seeds, scale, decay):
    """Raises a TypeError or ValueError that names the argument; for drafts, too."""
    H, K, V = check_call(r, w, k, v, a, b, None, None, scale, decay, DTYPES)[2:]
    check_pool(state_pool, r, H, K, V)
    check_indices(indices, state_pool, S)
    check_options(w0, seeds, r, state_pool, S)
    if torch.is_grad_enabled() and wants_gradients(r, w, k, v, a, b, w0, state_pool):
        raise ValueError("no argument can require a gradient: state_pool is overwritten; see wkv7")


def check_workspace(workspace, needed, r):
    if workspace is None:
        return
    check_tensor("workspace", workspace, r, (torch.uint8,))
    if workspace.ndim != 1 or len(workspace) < needed:
        raise ValueError(
            f"workspace must be [bytes ≥ {needed}], as wkv7_workspace makes it for these sizes,"
            f" got {list(workspace.shape)}"
        )
    on_gpu = needed and workspace.is_cuda  # torch on a CPU does without, and aligns by 64 bytes
    if on_gpu and (workspace.data_ptr() % 256 or not workspace.is_contiguous()):
        raise ValueError(
            "workspace must be contiguous and start at a multiple of 256 bytes, as wkv7_workspace"
            f" makes it, got strides {workspace.stride()} at {workspace.data_ptr():#x}"
        )


def wkv7_workspace(total, sequences, H, K, V, dtype, device="cuda"):
    """Scratch memory for `wkv7_serving` of up to `total` tokens and so many sequences.

    One is enough for all layers and calls of a stream, which use it one after the other.
    """
    r = torch.empty(1, total, H, K, dtype=dtype, device="meta")
    needed = _scratch_bytes(r, V, sequences) if TRITON else 0
    return torch.empty(needed, dtype=torch.uint8, device=device)


def wkv7_serving(
    r, w, k, v, a, b, state_pool, state_indices, cu_seqlens, *, decay="clamp", w0=None, scale=1.0,
    seeds=None, longest=None, workspace=None,
):  # fmt: skip
    """Mixes tokens of many sequences into their states, which are overwritten in the pool.

    Prompts of any length and single tokens stand one after the other in one batch. Sequences of up
    to 16 tokens are stepped through, longer ones go in chunks. The host reads no length and no
    index: a CUDA graph of a call can be replayed with others, as long as `longest` holds.

    Args:
        r, w, k, a, b: `[1, total, H, K]`; v: `[1, total, H, V]`; float32, float16 or bfloat16, see
            `wkv7`. total may be more than there are tokens.
        state_pool: `[slots, H, K, V]` (keys × values), contiguous, float32 or float16.
        state_indices: the slot of each sequence, `[S]`, int32, no slot twice; -1 for padding, of
            which nothing is read. A new sequence starts from what its slot holds: zero it.
        cu_seqlens: where sequences start and end, `[S + 1]`, int32 or int64, rising from 0 to at
            most total. A sequence may be empty; its state is not touched.
        decay: what w, or w0 + w, is: "clamp", "raw" or "log", see `wkv7`.
        w0: added to w, in float32, `[H, K]`.
        scale: r is multiplied by it.
        seeds: for a float16 pool, `[S]`, int32 or int64: states are rounded stochastically, after
            the token t of the call (from 0 on) with seeds + t. Give the number of tokens that a
            sequence has had, plus any salt. None: they are rounded to nearest.
        longest: no sequence of this call, or of a replay of its graph, has more tokens; total if
            None. It chooses the kernels: 1 launches the fewest.
        workspace: of `wkv7_workspace`; allocated if None. Only a call with a `longest` above 16
            uses it.

    Returns:
        o `[1, total, H, V]` in r's dtype; zeros in rows of no sequence and of padding.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape, layout or device, or needs a
            gradient. On a CPU lengths and indices are checked. On a GPU they are not, as the host
            would have to wait: a slot beyond the pool is memory of something else.
    """
    packed = isinstance(r, torch.Tensor) and r.ndim == 4
    S = check_ends(cu_seqlens, r, longest) if packed else 0  # 0: check_serving says what r is
    check_serving(r, w, k, v, a, b, w0, state_pool, state_indices, S, seeds, scale, decay)
    total = r.shape[1]
    longest = min(longest or total, total)
    if workspace is not None and TRITON:
        needed = _scratch_bytes(r, v.shape[3], S) if longest > 16 else 0
        check_workspace(workspace, needed, r)
    tensors = (r, w, k, v, a, b, w0, state_pool, state_indices, cu_seqlens, seeds, workspace)
    arguments = (*tensors, float(scale), decay, longest)
    if TRITON and r.is_cuda and launches_directly(*tensors):
        return serving(*arguments)
    return call(torch.ops.rwkv_lessons.wkv7_serving, *arguments)
