"""From lanes' addresses to what the memory system does: sectors, contention."""

import numpy as np

from ..architectures import FULL_WARP
from .banks import WORD
from .events import key

SECTOR = 32  # bytes: the smallest piece that moves between the caches and DRAM


def sectors(request, address):
    """How many sectors each request touches: [requests].

    An access is naturally aligned and at most 16 bytes, so it lies in one sector.
    """
    pairs = np.unique(key(request, address // SECTOR))
    span = int((address // SECTOR).max()) + 1 if len(address) else 1
    return np.bincount(pairs // span, minlength=_count(request))


def local_address(offset, lane):
    """Where the hardware puts a lane's local byte: word by word, the 32 lanes side by side."""
    return offset // WORD * (WORD * FULL_WARP) + lane * WORD + offset % WORD


def together(request, address):
    """The most lanes of one request that meet at one address."""
    return int(np.unique(key(request, address), return_counts=True)[1].max(initial=0))


def most_on_one(address):
    """The most accesses that one address gets."""
    return int(np.unique(address, return_counts=True)[1].max(initial=0))


def _count(request):
    return int(request.max()) + 1 if len(request) else 0
