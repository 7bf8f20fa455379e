"""What atomics order between blocks: a counter or a flag, with a fence before it.

A thread that updates an element atomically after a fence releases what it wrote before the fence,
and what its block wrote before a barrier in front of it. Whoever updates the same element later has
it. "Later" is that of the run: another order of the blocks can show another race.
"""

import numpy as np

from .events import key


class Releases:
    """The releases and acquires of a launch; `between` is None where there are none.

    Args:
        events: all `Events`. updates: which of them are atomics on global memory.
        cell: per event the number of its element.
        fences: (accesses before it, block, thread, interval), of every fence, in order.
    """

    def __init__(self, events, updates, cell, fences):
        self.used = False  # whether it ordered anything
        last, rows, position = {}, [], 0
        for n in np.flatnonzero(updates):
            while position < len(fences) and fences[position][0] <= events.order[n]:
                at, block, thread, interval = fences[position]
                last[block, thread] = at, interval
                position += 1
            actor = int(events.block[n]), int(events.thread[n])
            fence = last.get(actor, (-1, -1))
            rows.append((cell[n], events.order[n], *actor, events.interval[n], *fence))
        table = np.array(rows, np.int64).reshape(-1, 7)
        self.tables = [table[table[:, 0] == c] for c in np.unique(table[table[:, 5] >= 0, 0])]

    def __bool__(self):
        return bool(self.tables)

    def order(self, a, b):
        """Whether one of two accesses, (order, block, thread, interval) each, comes after another.

        The accesses are of different blocks.
        """
        a, b = sorted((a, b))
        ordered = any(_released(t, *a) < _acquired(t, *b) for t in self.tables)
        self.used |= ordered
        return ordered


NEVER = np.iinfo(np.int64).max


def _released(table, order, block, thread, interval):
    """When an element was first updated by someone who lets others see this access."""
    _, when, blocks, threads, _, fence, at = table.T
    mine = (blocks == block) & (((threads == thread) & (fence > order)) | (at > interval))
    return when[mine].min(initial=NEVER)


def _acquired(table, order, block, thread, interval):
    """When an element was last updated by someone after whom this access comes."""
    _, when, blocks, threads, at, *_ = table.T
    mine = (blocks == block) & (((threads == thread) & (when < order)) | (at < interval))
    return when[mine].max(initial=-1)


def representatives(events, members):
    """Of one element's accesses, the first and the last of each thread, interval and site."""
    chosen = events.select(members)
    group = key(chosen.block, chosen.thread, chosen.interval, chosen.site)
    _, first = np.unique(group, return_index=True)
    _, last = np.unique(group[::-1], return_index=True)
    return members[np.unique(np.r_[first, len(group) - 1 - last])]
