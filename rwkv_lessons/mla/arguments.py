"""What a call of multi-head latent attention may be given; every way of computing it asks here."""

from typing import NamedTuple

import torch

from ..runtime.arguments import check_number, learns

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int32, torch.int64)
FP8 = torch.float8_e4m3fn
BYTES = (FP8, torch.uint8)  # of a latent, of which only the first can be read
# Of decode and prefill. The sums of 64 rows then fill half of the registers of an SM; products in
# float32 take three times the operands.
LARGEST_RANK = {torch.float16: 512, torch.bfloat16: 512, torch.float32: 256}


class CallSizes(NamedTuple):
    """The sizes of a call, by their letters; N is what the cache of one sequence can hold."""

    B: int
    M: int
    H: int
    K: int  # of a key without rope; R where q comes absorbed
    R: int
    P: int
    V: int
    N: int
    page_size: int | None  # None where the cache has no pages


def check_arguments(
    q,
    q_rope,
    latent,
    k_rope,
    w_k,
    w_v,
    *,
    scale,
    lengths=None,
    left_padding=None,
    block_table=None,
    scales=None,
    tokens=None,
    dtypes=DTYPES,
):
    """Returns `CallSizes`, or raises a TypeError or ValueError that names the argument."""
    tensors = {"q": q, "q_rope": q_rope, "latent": latent, "k_rope": k_rope, "w_v": w_v}
    integers = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    integers["tokens"] = tokens
    if scales is not None or getattr(latent, "dtype", None) in BYTES:
        del tensors["latent"]
        _check_fp8(q, latent, scales)
    if w_k is not None:
        tensors["w_k"] = w_k
    _check_kinds(tensors, {k: x for k, x in integers.items() if x is not None}, dtypes)
    check_number("scale", scale)

    for name, x, letters in (
        ("q", q, "B, M, H, K"),
        ("latent", latent, "B, N, R" if block_table is None else "pages, page size, R"),
        ("w_v", w_v, "H, V, R"),
    ):
        if x.ndim != len(letters.split(",")) or 0 in x.shape[1:]:
            raise ValueError(f"{name} must be [{letters}], sizes ≥ 1, got {list(x.shape)}")
    (B, M, H, K), R, V = q.shape, latent.shape[-1], w_v.shape[1]
    P = q_rope.shape[-1] if q_rope.ndim == 4 else 0
    rows, N = latent.shape[:2]
    page_size = None
    if block_table is not None:
        if lengths is None:
            raise ValueError("lengths must be given with a block_table, got None")
        if block_table.ndim != 2:
            raise ValueError(f"block_table must be [B, pages], got {list(block_table.shape)}")
        if rows == 0 or block_table.shape[1] == 0:
            raise ValueError(
                f"latent and block_table must have pages, got {rows} and {block_table.shape[1]}"
            )
        page_size, N = N, N * block_table.shape[1]

    shapes = {
        "q_rope": (q_rope, "B, M, H, P ≥ 1", (B, M, H, max(P, 1))),
        "latent": (latent, "B, N, R", (B, N, R) if page_size is None else latent.shape),
        "k_rope": (k_rope, "as latent, P", (rows, page_size or N, P)),
        "w_k": (w_k, "H, K, R", (H, K, R)),
        "w_v": (w_v, "H, V, R", (H, V, R)),
        "lengths": (lengths, "B", (B,)),
        "left_padding": (left_padding, "B", (B,)),
        "block_table": (block_table, "B, pages", (B, N // (page_size or 1))),
    }
    for name, (x, letters, shape) in shapes.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} must be [{letters}] = {list(shape)}, got {list(x.shape)}")
    if scales is not None:
        _check_groups(scales, latent)
    if tokens is not None:
        _check_lists(tokens, B, M, left_padding)
    if w_k is None and K != R:
        raise ValueError(f"q must be absorbed, [B, M, H, R = {R}] if w_k is None, got K = {K}")
    sizes = CallSizes(B, M, H, K, R, P, V, N, page_size)
    if q.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_values(sizes, rows, lengths, left_padding, block_table)
    return sizes


def _check_fp8(q, latent, scales):
    """The dtypes and devices of an FP8 latent and its scales."""
    for name, x, dtype in (("latent", latent, FP8), ("scales", scales, torch.float32)):
        if x is None:
            raise TypeError("scales must be given with a float8_e4m3fn latent, got None")
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype == torch.uint8:
            raise TypeError(f"{name} must be {_names([dtype])}, got uint8: see fp8_cache_parts")
        if x.dtype != dtype:
            raise TypeError(f"{name} must be {_names([dtype])} in an FP8 cache, got {x.dtype}")
        if x.dtype == FP8 and learns(x):
            raise ValueError("latent has no gradient in FP8: pass latent.detach()")
        if isinstance(q, torch.Tensor) and x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")


def _check_groups(scales, latent):
    """One scale of a token, or one of each group of its columns."""
    R, shape = latent.shape[-1], [*latent.shape[:2], scales.shape[-1] if scales.ndim else 0]
    if list(scales.shape) != shape or not shape[2] or R % shape[2]:
        raise ValueError(
            f"scales must be [{shape[0]}, {shape[1]}, groups], groups a divisor of R = {R}, "
            f"got {list(scales.shape)}"
        )


def _check_lists(tokens, B, M, left_padding):
    """A list of each query."""
    if tokens.ndim not in (2, 3) or tokens.shape[:-1] not in ((B, M), (B,) * (M == 1)):
        either = f"[B, M, K] = [{B}, {M}, K]" + f" or [B, K] = [{B}, K]" * (M == 1)
        raise ValueError(f"tokens must be {either}, got {list(tokens.shape)}")
    if tokens.shape[-1] == 0:
        raise ValueError("tokens must have lists of at least one entry (-1 counts as none), got 0")
    if left_padding is not None:
        raise ValueError("left_padding must be None if tokens are given: leave padding out of them")


def _check_values(sizes, pages, lengths, left_padding, block_table):
    """What integers on a CPU hold. On a GPU the host would have to wait for them."""
    for name, x in (("lengths", lengths), ("left_padding", left_padding)):
        if x is not None and bool(((x < 0) | (x > sizes.N)).any()):
            raise ValueError(f"{name} must be from 0 to N = {sizes.N}, got {x.tolist()}")
    if block_table is not None:
        slots = filled_slots(sizes, lengths, left_padding, lengths.device)
        needed = slots.unflatten(1, (-1, sizes.page_size)).any(2)
        missing = needed & ((block_table < 0) | (block_table >= pages))
        if missing.any():
            b, page = missing.nonzero()[0].tolist()
            raise ValueError(
                f"entries of block_table with tokens must be from 0 to {pages - 1}, "
                f"got {block_table[b, page]} at [{b}, {page}]"
            )


def _check_kinds(tensors, integers, dtypes):
    for name, x in (tensors | integers).items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        allowed = dtypes if name in tensors else INTEGERS
        if x.dtype not in allowed:
            raise TypeError(f"{name} must be one of {_names(allowed)}, got {x.dtype}")
        if x.device != tensors["q"].device:
            raise ValueError(f"{name} must be on q's device {tensors['q'].device}, got {x.device}")
        if name in tensors and x.dtype != tensors["q"].dtype:
            raise TypeError(f"{name} must have q's dtype {tensors['q'].dtype}, got {x.dtype}")


def _names(dtypes):
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)


def gather_cache(latent, k_rope, block_table):
    """The pages of each sequence in a row: latent `[B, N, R]` and k_rope `[B, N, P]`, copied.

    An entry of the table that no length reaches may hold anything; one outside stands for page 0.
    """
    if block_table is None:
        return latent, k_rope
    pages = block_table.long()
    pages = pages.where((pages >= 0) & (pages < latent.shape[0]), 0)
    return tuple(x[pages].flatten(1, 2) for x in (latent, k_rope))


def filled_slots(sizes, lengths, left_padding, device):
    """Which slots of the cache hold a token, bool `[B, N]`."""
    n = torch.arange(sizes.N, device=device)
    end = torch.full((sizes.B,), sizes.N, device=device) if lengths is None else lengths
    start = torch.zeros_like(end) if left_padding is None else left_padding
    return (n >= start[:, None]) & (n < end[:, None])


def visible(sizes, lengths, left_padding, device):
    """Which tokens each query sees, bool `[B, M, N]`: query m stands at lengths - M + m."""
    end = torch.full((sizes.B,), sizes.N, device=device) if lengths is None else lengths
    m = torch.arange(sizes.M, device=device)
    position = end[:, None] - sizes.M + m  # [B, M]
    reached = torch.arange(sizes.N, device=device) <= position[..., None]
    return reached & filled_slots(sizes, lengths, left_padding, device)[:, None]
