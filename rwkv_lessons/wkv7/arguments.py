"""What a WKV-7 call may be given; every way of computing it asks here."""

from ..runtime.arguments import (
    DTYPES,
    check_dtype,
    check_number,
    check_shape,
    check_tensor,
    sizes_if_right,
    sizes_of,
)
from ..sequences.arguments import check_state, count_sequences

DECAYS = ("log", "raw", "clamp")  # what w may be, see options.py
LIKE_R = "wkab"  # arguments of r's shape


def check_call(
    r, w, k, v, a, b, s0=None, cu_seqlens=None, scale=1.0, decay="log", dtypes=DTYPES
):  # fmt: skip
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    sizes = sizes_if_right(r, v, (k, a, b), (w,), dtypes)
    if sizes is None or w.shape != r.shape:
        sizes = _check_tensors(dtypes, r=r, w=w, k=k, v=v, a=a, b=b)
    check_number("scale", scale)
    if decay not in DECAYS:
        raise ValueError(f"decay must be one of {', '.join(DECAYS)}, got {decay!r}")
    packed = cu_seqlens is not None
    sequences = count_sequences(cu_seqlens, r) if packed else r.shape[0]
    if s0 is not None:
        check_state("s0", s0, r, v, sequences, "S" if packed else "B", dtypes)
    return sizes


def _check_tensors(dtypes, **tensors):
    r = tensors["r"]
    for name, x in tensors.items():
        check_tensor(name, x, r, dtypes)
        if name != "w":
            check_dtype(name, x, r)
    B, T, H, K, V = sizes_of(r, tensors["v"])
    for name in LIKE_R:
        check_shape(name, tensors[name], "B, T, H, K", (B, T, H, K))
    return B, T, H, K, V
