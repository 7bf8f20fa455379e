"""What a page shows of a `TritonTrace`."""

import numpy as np

from ..cuda.memory_model import SECTOR
from ..wording import many
from .memory_map import element_numbers, memory_map

UNIT = "request"
COUNTED = (
    "Every tl.load, tl.store and atomic of every program, as the source has it. A request is one "
    "of these by one program. Lanes are its elements that no mask switches off, and sectors the "
    "distinct pieces of 32 bytes that hold them; exps are elements of which exp was taken."
)
NOT_MODELLED = (
    "Caches, scheduling and time; shared memory and registers, which the compiler lays out; "
    "how it splits a request among warps."
)
HEADS = ("requests", "lanes", "sectors", "exps")
HEAT = "sectors"
FIRST, MOST_IN_ORDER = 6, 120
IN_ORDER = "the first program's, in order"
SAMPLE = (
    f"This page has the first {FIRST} requests of each line and tensor, and the first "
    f"{MOST_IN_ORDER} of the first program."
)
MOST_SECTORS = 256  # of a request that are drawn
VERBS = {"load": "read", "store": "written", "atomic": "updated"}


def launch(trace):
    text = f"{many(trace.programs, 'program')}, grid {tuple(trace.grid)}"
    return f"{text}. {trace.configuration}" if trace.configuration else text


def facts(trace):
    dots = [
        (f"products {M}×{K} by {K}×{N}, {kind}", n) for (M, N, K, kind), n in trace.dots.items()
    ]
    rows = [
        ("requests", trace.requests()),
        ("lanes", trace.lanes()),
        ("sectors of global memory", trace.sectors()),
        ("bytes requested", trace.bytes()),
        ("bytes of the distinct elements", trace.least_bytes()),
        ("elements of which exp was taken", trace.exps),
        *dots,
    ]
    return [(name, value) for name, value in rows if value or name == "requests"]


def lines(trace):
    counts, exps = {}, dict(trace.exp_lines)
    for row in trace.rows:
        if row.place:
            numbers = row.requests, row.lanes, row.sectors, 0
            where = row.place.file, row.place.line
            counts[where] = tuple(map(sum, zip(counts.get(where, (0,) * 4), numbers, strict=True)))
    file = next(iter(counts), (None,))[0]
    for line, n in exps.items():
        if file:
            counts[file, line] = (*counts.get((file, line), (0,) * 3)[:3], n)
    return counts


def heat(numbers):
    return numbers[2]


def table(trace):
    heads = ["tensor", "access", "requests", "lanes", "sectors", "bytes"]
    body = [
        (row.place, [row.array, row.op, row.requests, row.lanes, row.sectors, row.bytes])
        for row in trace.rows
    ]
    return heads, body


def steps(trace):
    """As for numba: the first requests of each line and tensor, and the first program's."""
    placed = [n for n, x in enumerate(trace.accesses) if x.place]
    selected, totals, count = set(), {}, {}
    for n in placed:
        access = trace.accesses[n]
        where = access.place.file, access.place.line
        totals[where] = totals.get(where, 0) + 1
        kind = (*where, access.array, access.op)
        count[kind] = count.get(kind, 0) + 1
        if count[kind] <= FIRST:
            selected.add(n)
    first = [n for n in placed if trace.accesses[n].program == trace.accesses[placed[0]].program]
    first = first[:MOST_IN_ORDER]
    chosen = sorted(selected | set(first))
    number = {n: i for i, n in enumerate(chosen)}
    return [_step(trace.accesses[n]) for n in chosen], [number[n] for n in first], totals


def _step(access):
    place, distinct = access.place, np.unique(access.offsets)
    sector, elements = np.unique(distinct // SECTOR, return_counts=True)
    used = elements * access.width
    caption = f"line {place.line}, {access.array}: {many(len(access.offsets), 'element')} "
    caption += f"{VERBS[access.op]}, {many(len(sector), 'sector')}, "
    caption += f"{int(used.sum()):,} of {SECTOR * len(sector):,} bytes"
    if len(sector) > MOST_SECTORS:
        caption += f"; the first {MOST_SECTORS} sectors are drawn"
    drawn = np.stack([sector, used], 1)[:MOST_SECTORS].tolist()
    label = f"program {access.program}"
    step = {"op": access.op, "used": drawn, "sector": SECTOR, "said": caption, "who": label}
    return (place.file, place.line), step


def maps(trace):
    groups = {}
    for access in trace.accesses:
        groups.setdefault((access.array, access.op), []).append(access)
    for (name, op), accesses in groups.items():
        tensor, width = trace.tensors[name], accesses[0].width
        if not tensor.numel():
            continue
        offsets = np.concatenate([x.offsets for x in accesses])
        shape, size = tuple(tensor.shape), tensor.element_size()
        strides = tuple(size * n for n in tensor.stride())
        yield memory_map(name, shape, op, element_numbers(offsets, width, shape, strides, size))
