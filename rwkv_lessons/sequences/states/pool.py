"""What a pool of states and its indices may be, and rounding to its dtype in torch."""

import itertools

import torch

from ...runtime.arguments import DTYPES as ANY_FLOAT
from ...runtime.arguments import check_count, check_shape, check_tensor
from ..arguments import reads_values_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of r and the other tokens
POOL_DTYPES = (torch.float32, torch.float16)
# Of stochastic rounding: see rounding.py.
KEYS, VALUES, STEP = 0x3C6EF372, 0x1B873593, 0x9E3779B1  # odd bit patterns, far from each other
DROPPED = 13  # bits of a float32 that a float16 does not hold
WORD = 2**32 - 1


def check_pool(state_pool, r, H, K, V):
    """Raises a TypeError or ValueError unless it is a pool of states for r's heads."""
    check_tensor("state_pool", state_pool, r, POOL_DTYPES)
    shape = state_pool.shape
    if len(shape) != 4 or shape[0] < 1 or shape[1:] != (H, K, V):
        expected = f"[slots, H, K, V] = [slots ≥ 1, {H}, {K}, {V}]"
        raise ValueError(f"state_pool must be {expected}, got {list(shape)}")
    if not state_pool.is_contiguous():
        raise ValueError(
            f"state_pool must be contiguous, because it is updated in place, got strides"
            f" {state_pool.stride()}"
        )
    if torch.compiler.is_compiling() or not state_pool.is_cpu:
        return
    if state_pool.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "state_pool was made in torch.inference_mode, where alone torch updates it on a CPU:"
            " make this call there, too, or make the pool outside"
        )


def check_indices(state_indices, state_pool, S):
    """Raises an error unless there is a slot for each of S sequences.

    Values are checked on a CPU only, see `reads_values_of`.
    """
    check_integers("state_indices", state_indices, state_pool, (torch.int32,), S)
    if reads_values_of(state_indices):
        slots, used = len(state_pool), [i for i in state_indices.tolist() if i != -1]
        if used and not (0 <= min(used) and max(used) < slots):
            raise ValueError(
                f"state_indices must be -1 or from 0 to {slots - 1}, got {sorted(set(used))}"
            )
        if len(set(used)) < len(used):
            twice = sorted({i for i in used if used.count(i) > 1})
            raise ValueError(f"state_indices must name each slot once, got {twice} several times")


def check_integers(name, x, r, dtypes, S):
    """Raises an error unless x is `[S]`, contiguous, of one of the dtypes on r's device."""
    if isinstance(x, torch.Tensor) and x.dtype not in dtypes == (torch.int32,):
        raise TypeError(f"{name} must be int32, got {x.dtype}: use {name}.int()")
    check_tensor(name, x, r, dtypes, whose="state_pool")
    check_shape(name, x, "S", (S,))
    if not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {x.stride()}")


def check_options(w0, seeds, r, state_pool, S):
    """Raises an error unless w0 is `[H, K]` and seeds `[S]`, for float16; both may be None."""
    H, K = r.shape[2:]
    if w0 is not None:
        check_tensor("w0", w0, r, ANY_FLOAT)
        check_shape("w0", w0, "H, K", (H, K))
    if seeds is not None:
        check_integers("seeds", seeds, state_pool, (torch.int32, torch.int64), S)
        if state_pool.dtype != torch.float16:
            raise ValueError(
                f"seeds are for rounding to a float16 state_pool, which is {state_pool.dtype}:"
                " leave them out"
            )


def check_ends(cu_seqlens, r, longest=None):
    """The number of sequences that are packed along r `[1, total, H, K]`.

    Args:
        longest: None, or at least the number of tokens of each.
    """
    if longest is not None:
        check_count("longest", longest)
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    check_tensor("cu_seqlens", cu_seqlens, r, (torch.int32, torch.int64))
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or not cu_seqlens.is_contiguous():
        raise ValueError(
            f"cu_seqlens must be [S + 1], contiguous, with S ≥ 1, got {list(cu_seqlens.shape)},"
            f" strides {cu_seqlens.stride()}"
        )
    B, total = r.shape[:2]
    if B != 1:
        raise ValueError(f"r must be [1, total, H, K], sequences packed along total, got B = {B}")
    if reads_values_of(cu_seqlens):
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] > total or ends != sorted(ends):
            raise ValueError(f"cu_seqlens must increase from 0 to at most {total}, got {ends}")
        most = max(end - start for start, end in itertools.pairwise(ends))
        if longest is not None and most > longest:
            raise ValueError(
                f"longest must be at least the tokens of any sequence, {most}, got {longest}"
            )
    return len(cu_seqlens) - 1


def rounded(s, dtype, seeds=None):
    """States `[S, H, K, V]`, float32, in the pool's dtype; by a seed each, `[S]`, stochastically.

    The same bits as `rounding.rounded`.
    """
    if seeds is None or dtype != torch.float16:
        return s.to(dtype)
    S, H, K, V = s.shape
    words = seeds.to(torch.int64)[:, None] * STEP

    def mixed(count, salt):
        x = (words + (torch.arange(count, device=s.device) ^ salt)) & WORD
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
        return (x ^ (x >> 16)).view(S, H, -1)

    of_k, of_v = mixed(H * K, KEYS), mixed(H * V, VALUES) | 1
    low, high = of_v & 0xFFFF, of_v >> 16  # products of 48 bits: int64 holds them
    product = of_k[..., None] * low[..., None, :]
    product = product + ((of_k[..., None] * high[..., None, :]) << 16)
    random = (product & WORD) >> (32 - DROPPED)
    cut = ((s.view(torch.int32) + random.to(torch.int32)) >> DROPPED << DROPPED).view(torch.float32)
    return torch.where(s.abs() <= 65504.0, cut, s).to(dtype)
