"""What a WKV-5 call may be given; every way of computing it asks here."""

import torch

LARGEST = 1024  # keys or values of a head that a block's threads can hold between them
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_arguments(r, k, v, w, u, s0=None, dtypes=DTYPES):
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    given = {"r": r, "k": k, "v": v, "w": w, "u": u}
    if s0 is not None:
        given["s0"] = s0
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in dtypes:
            raise TypeError(f"{name} must be one of {_names(dtypes)}, got {x.dtype}")
        if x.device != r.device:
            raise ValueError(f"{name} must be on r's device {r.device}, got {x.device}")
    for name in "kv":
        if given[name].dtype != r.dtype:
            raise TypeError(f"{name} must have r's dtype {r.dtype}, got {given[name].dtype}")

    if r.ndim != 4 or 0 in r.shape:
        raise ValueError(f"r must be [B, T, H, K] with sizes of at least 1, got {list(r.shape)}")
    B, T, H, K = r.shape
    V = v.shape[-1] if v.ndim == 4 else 0
    if V == 0 or v.shape[:3] != r.shape[:3]:
        raise ValueError(f"v must be [B, T, H, V] = [{B}, {T}, {H}, V ≥ 1], got {list(v.shape)}")
    wanted = {"k": (B, T, H, K), "w": (H, K), "u": (H, K), "s0": (B, H, K, V)}
    letters = {"k": "B, T, H, K", "w": "H, K", "u": "H, K", "s0": "B, H, K, V"}
    for name, shape in wanted.items():
        if name in given and given[name].shape != shape:
            raise ValueError(
                f"{name} must be [{letters[name]}] = {list(shape)}, got {list(given[name].shape)}"
            )
    return B, T, H, K, V


def _names(dtypes):
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)
