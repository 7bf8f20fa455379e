"""Several drafted tokens of each sequence at once: verified, then as many committed as are right.

Verifying computes the outputs of all drafts and leaves the states as they are: to take drafts back
costs nothing. Committing computes the accepted tokens once more, since their inputs are few bytes:
T tokens are 5 T N elements of a head, the states after each of them T N². With T = 4 and N = 64 in
bfloat16 these are 2.5 KB instead of 64 KB, of which one would be read again.
"""

import functools

import torch

from ...runtime.operators import call
from ...runtime.packages import TRITON
from ...runtime.plain import launches_directly
from ...sequences.arguments import reads_values_of
from ...sequences.states.pool import check_integers
from .in_torch import drafts_in_torch
from .packed import check_serving

MOST = 8  # drafted tokens


@functools.cache
def _run_tokens():
    """The kernel's launch, with which Triton is imported."""
    from .tokens import run_tokens

    return run_tokens


def verify(r, w, k, v, a, b, w0, state_pool, indices, seeds, scale, decay):
    inputs = (r, w, k, v, a, b, w0, state_pool, indices)
    if not TRITON or r.shape[3] > 256:
        return verify_in_torch(*inputs, seeds, scale, decay)
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return verify(*inputs, seeds, scale, decay)
    tensors = [x.contiguous() for x in inputs[:6]]
    w0 = None if w0 is None else w0.contiguous()
    o = torch.empty_like(tensors[3])
    _run_tokens()(
        tensors, w0, state_pool, indices, None, seeds, None, o, r.shape[1], scale, decay,
        writes=False, each=True,
    )  # fmt: skip
    return o


def verify_in_torch(r, w, k, v, a, b, w0, state_pool, indices, seeds, scale, decay):
    inputs = (r, w, k, v, a, b, w0, state_pool, indices, None, seeds)
    return drafts_in_torch(*inputs, scale, decay, write=False)


def commit(r, w, k, v, a, b, w0, state_pool, indices, accepted, seeds, decay):
    inputs = (r, w, k, v, a, b, w0, state_pool, indices, accepted, seeds)
    if not TRITON or r.shape[3] > 256:
        return commit_in_torch(*inputs, decay)
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return commit(*inputs, decay)
    tensors = [x.contiguous() for x in inputs[:6]]
    w0 = None if w0 is None else w0.contiguous()
    _run_tokens()(
        tensors, w0, state_pool, indices, None, seeds, accepted, None, r.shape[1], 1.0, decay,
        each=True,
    )  # fmt: skip
    torch.autograd.graph.increment_version(state_pool)
    return None


def commit_in_torch(r, w, k, v, a, b, w0, state_pool, indices, accepted, seeds, decay):
    inputs = (r, w, k, v, a, b, w0, state_pool, indices, accepted, seeds)
    drafts_in_torch(*inputs, 1.0, decay, write=True)


TENSORS = ", ".join(f"Tensor {x}" for x in "rwkvab")
VERIFY, COMMIT = "rwkv_lessons::wkv7_verify", "rwkv_lessons::wkv7_commit"
torch.library.define(
    VERIFY,
    f"({TENSORS}, Tensor? w0, Tensor state_pool, Tensor indices, Tensor? seeds, float scale,"
    " str decay) -> Tensor",
)
torch.library.define(
    COMMIT,
    f"({TENSORS}, Tensor? w0, Tensor(a!) state_pool, Tensor indices, Tensor accepted,"
    " Tensor? seeds, str decay) -> ()",
)
torch.library.impl(VERIFY, "CUDA", verify)
torch.library.impl(VERIFY, "CPU", verify_in_torch)
torch.library.impl(COMMIT, "CUDA", commit)
torch.library.impl(COMMIT, "CPU", commit_in_torch)
torch.library.register_fake(
    VERIFY, lambda r, w, k, v, *_: torch.empty_like(v, memory_format=torch.contiguous_format)
)
torch.library.register_fake(COMMIT, lambda *_: None)


def check_drafts(r, w, k, v, a, b, w0, state_pool, indices, seeds, scale, decay):
    """Raises a TypeError or ValueError that names the argument."""
    S = r.shape[0] if isinstance(r, torch.Tensor) and r.ndim == 4 else 0
    check_serving(r, w, k, v, a, b, w0, state_pool, indices, S, seeds, scale, decay)
    if r.shape[1] > MOST:
        raise ValueError(
            f"r must be [S, T, H, K] with T ≤ {MOST} drafted tokens, got {list(r.shape)};"
            " for more see wkv7_serving"
        )
    return S


def wkv7_verify(
    r, w, k, v, a, b, state_pool, state_indices, *, decay="clamp", w0=None, scale=1.0, seeds=None
):
    """The outputs of up to 8 drafted tokens a sequence; the states stay as they are.

    Token t of a sequence has the output that it would have if the tokens before it had been stepped
    through one by one with `wkv7_serving`, bit for bit, the state being rounded to the pool's dtype
    after each. A sequence with fewer drafts may have anything in its last rows: no token depends on
    later ones.

    Args:
        r, w, k, a, b: `[S, T, H, K]`; v: `[S, T, H, V]`: T drafts of each of S sequences.
        others: as of `wkv7_serving`; seeds are those of the first drafts.

    Returns:
        o `[S, T, H, V]` in r's dtype; zeros where the index is -1.

    Raises:
        TypeError, ValueError: as `wkv7_serving`, and for more than 8 tokens.
    """
    check_drafts(r, w, k, v, a, b, w0, state_pool, state_indices, seeds, scale, decay)
    tensors = (r, w, k, v, a, b, w0, state_pool, state_indices, seeds)
    arguments = (*tensors, float(scale), decay)
    if TRITON and r.is_cuda and launches_directly(*tensors):
        return verify(*arguments)
    return call(torch.ops.rwkv_lessons.wkv7_verify, *arguments)


def wkv7_commit(
    r, w, k, v, a, b, state_pool, state_indices, accepted, *, decay="clamp", w0=None, seeds=None
):
    """Takes the first `accepted` of the drafted tokens into the states, in place.

    The pool then holds the bits that it would hold if they had been stepped through one by one with
    `wkv7_serving`.

    Args:
        r, w, k, v, a, b: what `wkv7_verify` was given, as all others; r is not read.
        accepted: how many of the drafts of each sequence are right, `[S]`, int32, from 0 to T; with
            0 its state is not touched. On a GPU more than T are T.

    Raises:
        TypeError, ValueError: as `wkv7_verify`.
    """
    S = check_drafts(r, w, k, v, a, b, w0, state_pool, state_indices, seeds, 1.0, decay)
    check_integers("accepted", accepted, state_pool, (torch.int32,), S)
    if reads_values_of(accepted):
        if S and not (0 <= accepted.min() and accepted.max() <= r.shape[1]):
            T = r.shape[1]
            raise ValueError(f"accepted must be from 0 to T = {T}, got {accepted.tolist()}")
    tensors = (r, w, k, v, a, b, w0, state_pool, state_indices, accepted, seeds)
    if TRITON and r.is_cuda and launches_directly(*tensors):
        commit(*tensors, decay)
    else:
        call(torch.ops.rwkv_lessons.wkv7_commit, *tensors, decay)
