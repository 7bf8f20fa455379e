"""Which packages with a compiler for kernels are installed; to look does not import them."""

from importlib.util import find_spec

TRITON = find_spec("triton") is not None  # there are no wheels for macOS and Windows
NUMBA = find_spec("numba_cuda") is not None  # of the extra [cuda]
