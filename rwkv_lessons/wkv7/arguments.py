"""What a WKV-7 call may be given; every way of computing it asks here."""

import torch

from ..wkv6.options import count_sequences

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
DECAYS = ("log", "raw", "clamp")  # what w may be, see options.py
LIKE_R = "wkab"  # arguments of r's shape


def check_call(
    r, w, k, v, a, b, s0=None, cu_seqlens=None, scale=1.0, decay="log", dtypes=DTYPES
):  # fmt: skip
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    given = {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b}
    for name, x in given.items():
        check_tensor(name, x, r, dtypes)
        if name != "w" and x.dtype != r.dtype:
            raise TypeError(f"{name} must have r's dtype {r.dtype}, got {x.dtype}")
    if r.ndim != 4 or 0 in r.shape:
        raise ValueError(f"r must be [B, T, H, K] with sizes of at least 1, got {list(r.shape)}")
    B, T, H, K = r.shape
    V = v.shape[-1] if v.ndim == 4 else 0
    if V == 0 or v.shape[:3] != r.shape[:3]:
        raise ValueError(f"v must be [B, T, H, V] = [{B}, {T}, {H}, V ≥ 1], got {list(v.shape)}")
    for name in LIKE_R:
        check_shape(name, given[name], "B, T, H, K", (B, T, H, K))
    if type(scale) is not float and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise TypeError(f"scale must be a number, got {type(scale).__name__}")
    if decay not in DECAYS:
        raise ValueError(f"decay must be one of {', '.join(DECAYS)}, got {decay!r}")
    packed = cu_seqlens is not None
    sequences = count_sequences(cu_seqlens, r) if packed else B
    if s0 is not None:
        check_tensor("s0", s0, r, dtypes)
        letters = "S, H, K, V" if packed else "B, H, K, V"
        check_shape("s0", s0, letters, (sequences, H, K, V))
    return B, T, H, K, V


def check_tensor(name, x, r, dtypes):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be one of {wanted}, got {x.dtype}")
    if x.device != r.device:
        raise ValueError(f"{name} must be on r's device {r.device}, got {x.device}")


def check_shape(name, x, letters, shape):
    if x.shape != shape:
        raise ValueError(f"{name} must be [{letters}] = {list(shape)}, got {list(x.shape)}")
