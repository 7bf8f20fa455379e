"""What a WKV-5 call may be given; every way of computing it asks here."""

from ..runtime.arguments import DTYPES, check_time_mixing

LARGEST = 1024  # keys or values of a head that a block's threads can hold between them


def check_arguments(r, k, v, w, u, s0=None, dtypes=DTYPES):
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    return check_time_mixing(r, k, v, w, u, s0, dtypes, w_per_token=False)
