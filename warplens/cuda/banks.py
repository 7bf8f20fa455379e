"""The banks of shared memory: which words of a request are served together, and which wait."""

import numpy as np

from ..architectures import FULL_WARP
from .events import key, occurrence

BANKS, WORD = 32, 4  # 32 banks, each 4 bytes wide


def served_words(request, lane, address, width, op):
    """In which wavefront (trip to shared memory) each word of each access is served.

    All accesses have the same `width` in bytes and the same `op`. In a wavefront, a bank serves one
    word. 32 lanes × 8 bytes go as two half warps, 32 × 16 bytes as four quarters; a wide load takes
    half of that where each lane reads the same address as lane ^ 1, or each as lane ^ 2. (NVIDIA's
    forum, "Unexpected shared memory bank conflict", 2019.) Lanes that only read, or overwrite, the
    same word share a wavefront; atomics on it take turns.

    Args:
        request, lane, address: [accesses]; the address in bytes from the start of shared memory.

    Returns:
        (access, bank, phase, turn), [words] each: a wavefront is a turn of a phase of a request,
        and every turn but the first is one that a layout without conflicts would not need.
    """
    count = int(request.max()) + 1 if len(request) else 0
    phase = lane // (FULL_WARP * WORD // max(width, WORD))
    if op == "load" and width > WORD:
        phase = np.where(_paired(request, lane, address, count)[request], phase // 2, phase)
    words = max(1, width // WORD)
    access = np.repeat(np.arange(len(lane)), words)
    word = ((address // WORD)[:, None] + np.arange(words)).ravel()
    together = key(request[access], phase[access])
    ticket = key(together, word)
    if op == "atomic":
        ticket = ticket * len(word) + np.arange(len(word))
    _, first, of_ticket = np.unique(ticket, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # a bank's queue: who comes first is served first
    turn = np.empty(len(first), np.int64)
    turn[order] = occurrence(key(together, word % BANKS)[first][order])
    return access, word % BANKS, phase[access], turn[of_ticket]


def wavefronts(request, lane, address, width, op):
    """Wavefronts, and how many there would be without any conflict: two arrays [requests]."""
    count = int(request.max()) + 1 if len(request) else 0
    access, _, phase, turn = served_words(request, lane, address, width, op)
    _, first = np.unique(key(request[access], phase, turn), return_index=True)
    of_wavefront, turn = request[access][first], turn[first]
    least = np.bincount(of_wavefront[turn == 0], minlength=count)
    return np.bincount(of_wavefront, minlength=count), least


def schedule(lanes, addresses, width, op):
    """The wavefronts of one request to shared memory, in order, for a picture.

    Returns:
        A list of ({bank: lanes served}, is it one that a conflict-free layout would not need).
    """
    lane = np.array(lanes)
    zero = np.zeros(len(lane), np.int64)
    served = {}
    for access, bank, phase, turn in zip(
        *served_words(zero, lane, np.array(addresses), width, op), strict=True
    ):
        banks = served.setdefault((int(phase), int(turn)), {})
        banks.setdefault(int(bank), []).append(int(lane[access]))
    return [(banks, turn > 0) for (_, turn), banks in sorted(served.items())]


def _paired(request, lane, address, count):
    """Per request: do lanes n and n ^ 1 (or n and n ^ 2) agree wherever both are active?"""
    table = np.full((count, FULL_WARP), -1, np.int64)
    table[request, lane] = address
    lanes = np.arange(FULL_WARP)
    agree = [
        ((table == neighbour) | (table < 0) | (neighbour < 0)).all(axis=1)
        for neighbour in (table[:, lanes ^ 1], table[:, lanes ^ 2])
    ]
    return agree[0] | agree[1]
