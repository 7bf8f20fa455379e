"""What a page shows of a `Trace`, a kernel of numba."""

import numpy as np

from ..cuda import banks
from ..cuda import memory_model as traffic
from ..cuda.fake_cuda import FULL_WARP
from ..pictures.steps import step
from ..wording import many
from .memory_map import element_numbers, memory_map

UNIT = "request"
COUNTED = (
    "Every access of every thread, as the source has it. A request is one instruction of one warp. "
    "Global memory serves it in sectors of 32 bytes, shared memory in wavefronts; a wavefront that "
    "a layout without bank conflicts would not need is a conflict."
)
NOT_MODELLED = (
    "Caches, scheduling and time. A compiler may keep values in registers, load an unchanging "
    "address once, or merge neighbouring accesses; the hardware then counts less."
)
HEADS = ("requests", "sectors", "wavefronts", "conflicts")
HEAT = "sectors and wavefronts"
FIRST = 6  # requests of a line and array that a page has, besides the slowest
MOST_IN_ORDER = 120  # requests of the first warp
IN_ORDER = "the first warp's, in order"
SAMPLE = (
    f"This page has the first {FIRST} requests of each line and array, the slowest one, and the "
    f"first {MOST_IN_ORDER} of the first warp."
)


def launch(trace):
    blocks, threads = len(trace.blocks), trace.threads_per_block
    text = f"{many(blocks, 'block')} of {many(threads, 'thread')}, {many(trace.warps, 'warp')}"
    if blocks < trace.all_blocks:
        text += f". These are {blocks} of {trace.all_blocks:,} blocks; every count is of them alone"
    return text


def facts(trace):
    """[(name, value)]: the sums over all lines."""
    rows = [
        ("requests", trace.requests()),
        ("sectors of global memory", trace.sectors()),
        ("bytes requested from global memory", trace.bytes("global")),
        ("bytes of the distinct sectors", trace.least_bytes()),
        ("bank conflicts", trace.bank_conflicts),
        ("atomic operations", trace.atomics),
        ("bytes of shared memory, a block", trace.shared_bytes),
    ]
    return [(name, value) for name, value in rows if value or name == "requests"]


def lines(trace):
    """{(file, line): numbers as in `HEADS`}."""
    counts = {}
    for row in trace.rows:
        numbers = row.requests, row.sectors, row.wavefronts, row.conflicts
        where = row.place.file, row.place.line
        counts[where] = tuple(map(sum, zip(counts.get(where, (0,) * 4), numbers, strict=True)))
    return counts


def heat(numbers):
    return numbers[1] + numbers[2]


def table(trace):
    """(heads, [(place, cells)]): a row per line, array and kind of access."""
    heads = ["array", "memory", "access", "bytes a lane", "requests", "sectors", "distinct sectors"]
    heads += ["wavefronts", "conflicts", "bytes", "addresses", "most on one"]
    body = [
        (row.place, [row.array, row.space, row.op, row.width, row.requests, row.sectors,
                     row.least_sectors, row.wavefronts, row.conflicts, row.bytes, row.addresses,
                     row.most_on_one])
        for row in trace.rows
    ]  # fmt: skip
    return heads, body


def steps(trace):
    """([(place, step)], [number of each step of the first warp, in order], {row's place: count}).

    A sample: the first requests of each line and array and its slowest one, and the first ones of
    the first warp. A place is a (file, line).
    """
    e = trace.events
    request, first = np.unique(e.request, return_index=True)
    order = np.lexsort((first, e.warp[first]))  # by warp, and then in the order of execution
    row, warp = trace._row_of_site[e.site[first]], e.warp[first]
    drawn = np.array([r.space in ("global", "shared") for r in trace.rows], bool)
    order = order[drawn[row[order]]]
    in_order = order[warp[order] == warp[order[0]]][:MOST_IN_ORDER] if len(order) else order
    selected = dict.fromkeys(in_order.tolist())
    totals = {}
    for n, of_row in enumerate(trace.rows):
        mine = order[row[order] == n]
        where = of_row.place.file, of_row.place.line
        totals[where] = totals.get(where, 0) + len(mine)
        if len(mine):
            selected |= dict.fromkeys([*mine[:FIRST].tolist(), _slowest(trace, n, mine)])
    rank = {int(n): place for place, n in enumerate(order)}
    chosen = sorted(selected, key=rank.get)
    placed_steps = [
        _step(trace, *x) for x in zip(chosen, _addresses(e, request[chosen]), strict=True)
    ]
    number = {n: i for i, n in enumerate(chosen)}
    return placed_steps, [number[n] for n in in_order.tolist()], totals


def _slowest(trace, row, mine):
    """Which of the requests `mine`, all of one row, takes the most sectors or wavefronts."""
    e = trace.events
    at = np.flatnonzero(trace._row_of_site[e.site] == row)
    of_row, lane = trace.rows[row], e.thread[at] % FULL_WARP
    if of_row.space == "shared":
        args = e.request[at], lane, e.offset[at], of_row.width, of_row.op
        cost = banks.wavefronts(*args)[0]
    else:
        cost = traffic.sectors(e.request[at], e.offset[at])
    return int(mine[np.argmax(cost[mine])])


def _addresses(events, requests):
    """The events of each of these requests, in one pass over all of them."""
    at = np.flatnonzero(np.isin(events.request, requests))
    by_request = {int(n): [] for n in requests}
    for n in at:
        by_request[int(events.request[n])].append(int(n))
    return [by_request[int(n)] for n in requests]


def _step(trace, request, at):
    e, addresses = trace.events, [None] * FULL_WARP
    for n in at:
        addresses[int(e.thread[n]) % FULL_WARP] = int(e.offset[n])
    row = trace.rows[trace._row_of_site[e.site[at[0]]]]
    warps = -(-trace.threads_per_block // FULL_WARP)
    label = f"block {trace.blocks[e.block[at[0]]]}, warp {int(e.warp[at[0]]) % warps}"
    return (row.place.file, row.place.line), step(row, addresses) | {"who": label}


def worst_banks(trace, placed_steps):
    """Of the steps that `steps` returned, the one with the most conflicts, or None."""
    shared = [x for _, x in placed_steps if x["space"] == "shared"]
    return max(shared, key=lambda x: sum(extra for _, extra in x["passes"]), default=None)


def maps(trace):
    """A figure per array of global, constant and shared memory and kind of access."""
    groups = {}
    for site in trace.sites:
        if site.memory.space != "local":
            kind = site.memory.space, site.memory.name, site.memory.shape, site.op
            groups.setdefault(kind, []).append(site)
    for (space, name, shape, op), sites in groups.items():
        if not all(shape):
            continue
        touched = [_touched(trace, site) for site in sites]
        each = len(trace.blocks) if space == "shared" else 1
        whose = " and block" if space == "shared" else ""
        named = f"{name} ({space})"
        yield memory_map(named, shape, op, np.concatenate(touched), each=each, whose=whose)


def _touched(trace, site):
    memory, offsets = site.memory, trace.events.offset[trace.events.site == site.number]
    return element_numbers(offsets, site.width, memory.shape, memory.strides, memory.itemsize)
