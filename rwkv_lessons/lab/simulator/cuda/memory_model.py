"""From lanes' addresses to what the memory system does: sectors, wavefronts, contention."""

import numpy as np

from .events import key
from .fake_cuda import FULL_WARP

SECTOR = 32  # bytes: the smallest piece that moves between the caches and DRAM
BANKS, WORD = 32, 4  # shared memory: 32 banks, each 4 bytes wide


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


def wavefronts(request, lane, address, width, op):
    """Passes over shared memory, and the passes without any conflict: two arrays [requests].

    All accesses have the same `width` in bytes and the same `op`. A bank serves one word per pass.
    32 lanes × 8 bytes go as two half warps, 32 × 16 bytes as four quarters; a wide load takes half
    of that where each lane reads the same address as lane ^ 1, or each as lane ^ 2. (NVIDIA's
    forum, "Unexpected shared memory bank conflict", 2019.) Lanes that only read, or overwrite, the
    same word share one pass; atomics on it take turns.
    """
    count = _count(request)
    lanes_together = FULL_WARP * WORD // max(width, WORD)
    phase = lane // lanes_together
    if op == "load" and width > WORD:
        phase = np.where(_paired(request, lane, address, count)[request], phase // 2, phase)
    words = max(1, width // WORD)
    word = (address // WORD)[:, None] + np.arange(words)
    group = np.repeat(key(request, phase), words)
    word = word.ravel()
    if op != "atomic":
        distinct = np.unique(key(group, word), return_index=True)[1]
        group, word = group[distinct], word[distinct]
    turn, per_bank = np.unique(key(group, word % BANKS), return_counts=True)
    banks = int((word % BANKS).max()) + 1 if len(word) else 1
    phases, start = np.unique(turn // banks, return_index=True)
    worst = np.maximum.reduceat(per_bank, start) if len(start) else per_bank
    of_request = phases // (int(phase.max()) + 1) if len(phase) else phases
    total = np.bincount(of_request, weights=worst, minlength=count).astype(np.int64)
    return total, np.bincount(of_request, minlength=count)


def _paired(request, lane, address, count):
    """Per request: do lanes n and n ^ 1 (or n and n ^ 2) agree wherever both are active?"""
    table = np.full((count, FULL_WARP), -1, np.int64)
    table[request, lane] = address
    lanes = np.arange(FULL_WARP)
    agree = [
        ((table == other) | (table < 0) | (other < 0)).all(axis=1)
        for other in (table[:, lanes ^ 1], table[:, lanes ^ 2])
    ]
    return agree[0] | agree[1]


def together(request, address):
    """The most lanes of one request that meet at one address."""
    return int(np.unique(key(request, address), return_counts=True)[1].max(initial=0))


def most_on_one(address):
    """The most accesses that one address gets."""
    return int(np.unique(address, return_counts=True)[1].max(initial=0))


def _count(request):
    return int(request.max()) + 1 if len(request) else 0


def schedule(lanes, addresses, width, op):
    """The passes of one request over shared memory, in order, for a picture.

    Returns:
        A list of ({bank: lanes served}, is it one that a conflict-free layout would not need).
    """
    lane, address = np.array(lanes), np.array(addresses)
    zero = np.zeros(len(lane), np.int64)
    phase = lane // (FULL_WARP * WORD // max(width, WORD))
    if op == "load" and width > WORD and _paired(zero, lane, address, 1)[0]:
        phase = phase // 2
    passes = []
    for now in np.unique(phase):
        queues = {}  # bank → word → the lanes that want it
        for n in np.flatnonzero(phase == now):
            for word in range(address[n] // WORD, (address[n] + max(width, WORD)) // WORD):
                ticket = (word, n) if op == "atomic" else word
                queues.setdefault(int(word) % BANKS, {}).setdefault(ticket, []).append(int(lane[n]))
        for turn in range(max(map(len, queues.values()))):
            served = {b: list(q.values())[turn] for b, q in queues.items() if turn < len(q)}
            passes.append((served, turn > 0))
    return passes
