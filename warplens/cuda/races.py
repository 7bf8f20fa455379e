"""Two threads, one address, no barrier in between, and at least one of them writes."""

from dataclasses import dataclass

import numpy as np

from ..faults import Place
from .events import key
from .releases import Releases, representatives

MOST_LOOKED_AT = 2000  # racing addresses from which the examples are taken


@dataclass(frozen=True)
class Race:
    """One pair of source lines that race, with an example."""

    array: str
    index: tuple[int, ...]
    op: str  # of the write: "store" or "atomic"
    place: Place
    thread: str
    other_op: str
    other_place: Place
    other_thread: str
    space: str  # "global" or "shared"
    addresses: int  # on how many addresses a race begins with these two lines

    def __str__(self) -> str:
        index = ", ".join(str(i) for i in self.index)
        words = {"load": "reads", "store": "writes", "atomic": "updates"}
        return (
            f"race on {self.array}[{index}] ({self.addresses:,} such addresses), "
            "in no fixed order:\n"
            f"  {self.thread} {words[self.op]} it at {self.place}\n"
            f"  {self.other_thread} {words[self.other_op]} it at {self.other_place}"
        )


def races(events, sites, lock_sets, fences, thread_name):
    """(The races in a traced launch, whether atomics ordered what would have been more).

    `lock_sets` has every set of locks that a thread has held, in the order of their numbers;
    `fences` are as for `Releases`; `thread_name(block, thread)` says who it was.
    """
    space = np.array([site.memory.space for site in sites])
    op = np.array([site.op for site in sites])
    racing = {}
    if not len(events):
        return [], False
    releases = _releases(events, sites, fences)
    events = events.select(np.isin(space, ("global", "shared"))[events.site])
    events, cell = _cells(_near_a_write(events, sites), sites)
    written = np.unique(cell[(op != "load")[events.site]])
    mask = np.isin(cell, written)
    events, cell = events.select(mask), cell[mask]
    block, warp, when = events.block, events.warp, events.interval
    is_global = (space == "global")[events.site]
    groupings = [
        (key(cell, block, when), warp, np.full(len(events), True)),
        (key(cell, warp, when, events.warp_interval), events.thread, np.full(len(events), True)),
        (
            key(cell, events.grid_interval),
            block,
            is_global,
        ),  # only the grid's barrier orders blocks
    ]
    for group, actor, chosen in groupings:
        locks = events.locks[chosen], lock_sets
        order = _order(events, np.flatnonzero(chosen), releases) if actor is block else None
        for a, b in _examples(group[chosen], actor[chosen], op[events.site[chosen]], *locks, order):
            a, b = np.flatnonzero(chosen)[[a, b]]
            pair = events.site[a], events.site[b]
            places = tuple(str(sites[n].place) for n in pair)
            name = sites[pair[0]].memory.name
            racing.setdefault((name, places), []).append((events, a, b))
    racing = [_describe(examples, sites, thread_name) for examples in racing.values()]
    return racing, releases.used


def _releases(events, sites, fences):
    """What atomics on global memory order, where there are fences."""
    updates = np.array([s.op == "atomic" and s.memory.space == "global" for s in sites])
    updates = updates[events.site] & bool(fences)
    return Releases(events, updates, key(_memory(sites)[events.site], events.offset), fences)


def _order(events, chosen, releases):
    """None, or a function: of positions in `chosen`, the first pair that nothing orders, or None.

    Of the pair, the first writes.
    """
    if not releases:
        return None

    def pair(members, op):
        whole = dict(zip(chosen[members].tolist(), range(len(members)), strict=True))
        members = representatives(events, chosen[members])
        for a in members:
            if op[whole[a]] != "load":
                for b in members:
                    if events.block[a] == events.block[b]:
                        continue
                    atomics = op[whole[a]] == op[whole[b]] == "atomic"
                    if not atomics and not releases.order(_who(events, a), _who(events, b)):
                        return whole[a], whole[b]
        return None

    return pair


def _who(events, n):
    columns = events.order, events.block, events.thread, events.interval
    return tuple(int(column[n]) for column in columns)


def _near_a_write(events, sites):
    """The accesses that could race: nearly all are loads of what was written before a barrier.

    An access has at most 16 bytes, and begins at a multiple of its width.
    """
    writes = np.array([site.op != "load" for site in sites])[events.site]
    shared = np.array([site.memory.space == "shared" for site in sites])[events.site]
    place = key(_memory(sites)[events.site], events.offset // 16)
    when = key(place, events.block, events.interval)
    near = np.isin(when, np.unique(when[writes]))
    near |= ~shared & np.isin(place, np.unique(place[writes & ~shared]))  # whatever the block
    return events.select(near)


def _memory(sites):
    """Per site, the number of its array; views of one memory have one."""
    numbers = {}
    return np.array([numbers.setdefault(id(s.memory.storage), len(numbers)) for s in sites])


def _describe(examples, sites, thread_name):
    events, a, b = examples[0]
    first, second = sites[events.site[a]], sites[events.site[b]]
    # A vector access covers several cells: the one both touch is the larger start.
    offset = max(events.offset[a], events.offset[b])
    return Race(
        first.memory.name,
        first.memory.index_of(int(offset)),
        first.op,
        first.place,
        thread_name(int(events.block[a]), int(events.thread[a])),
        second.op,
        second.place,
        thread_name(int(events.block[b]), int(events.thread[b])),
        first.memory.space,
        len(examples),
    )


def _cells(events, sites):
    """Accesses cut into elements, and for each the number of its array's element."""
    number = _memory(sites)
    smallest = {}  # of each array: structures and views have accesses of several sizes
    for n, site in zip(number, sites, strict=True):
        smallest[n] = min(smallest.get(n, site.width), site.width, site.memory.itemsize)
    itemsize = np.array([smallest[n] for n in number])[events.site]
    pieces = np.array([site.width for site in sites])[events.site] // itemsize
    which = np.repeat(np.arange(len(events)), pieces)
    step = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    element = (events.offset // itemsize)[which] + step
    events = events.select(which)
    return events, key(number[events.site], element)


def _examples(group, actor, op, locks, lock_sets, unordered=None):
    """Per racing group a pair of positions: a write, and another actor's access.

    Where all of a group hold one lock meanwhile, it orders them. `unordered` finds a pair that
    atomics do not order, where some are ordered.
    """
    if not len(group):
        return
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(ordered)]
    actor, op, locks = actor[order], op[order], locks[order]
    several = np.minimum.reduceat(actor, starts) != np.maximum.reduceat(actor, starts)
    stored, updated, loaded = (
        np.logical_or.reduceat(op == name, starts) for name in ("store", "atomic", "load")
    )
    racing = several & (stored | (updated & loaded))
    most = None if unordered or locks.any() else MOST_LOOKED_AT  # most may be in order
    for n in np.flatnonzero(racing)[:most]:
        members = slice(starts[n], ends[n])
        if locks[members].any() and _common(locks[members], lock_sets):
            continue
        if unordered:
            pair = unordered(order[members], op[members])
        else:
            pair = _pair(actor[members], op[members])
        if pair is None:
            continue
        a, b = pair
        yield order[members][a], order[members][b]


def _common(numbers, lock_sets):
    """The locks that are in all of these sets."""
    return frozenset.intersection(*(lock_sets[n] for n in np.unique(numbers)))


def _pair(actor, op):
    """A write and an access by another actor; a plain store and a load where there are such."""
    for writing, against in (("store", "load"), ("store", None), ("atomic", "load")):
        writes = np.flatnonzero(op == writing)
        for a in writes[np.sort(np.unique(actor[writes], return_index=True)[1])]:
            partners = (actor != actor[a]) & ((op == against) if against else True)
            if partners.any():
                return a, int(np.argmax(partners))
    raise AssertionError("a racing group without a pair")  # pragma: no cover
