"""What a page shows of a `GluonTrace`."""

from collections import Counter

import numpy as np

from ..wording import many
from .memory_map import element_numbers, memory_map

UNIT = "step"
COUNTED = (
    "What the threads of each program do that concerns shared memory, copies or products, step by "
    "step, and every copy and product from the step that starts it to the one that waits for it."
)
NOT_MODELLED = (
    "Time: a copy is done when the kernel waits for it, and not before. Barriers between threads, "
    "which Triton adds, layouts in shared memory, and caches."
)
HEADS = ("steps", "copies in", "copies out", "products", "waits")
HEAT = "steps"
MOST = 300  # steps of a program that a page has
IN_ORDER = "the program's, in order"
SAMPLE = f"This page has up to {MOST} steps of one program; the timeline marks the current one."


def launch(seen):
    return f"{many(seen.programs, 'program')}, grid {tuple(seen.grid)}"


def facts(seen):
    kinds = [(what, len(seen.of(kind))) for kind, what in COPIES.items()]
    found = [
        ("steps", len(seen.steps)),
        *kinds,
        ("bytes copied in", seen.bytes("copy in")),
        ("bytes copied out", seen.bytes("copy out")),
        ("operations of the products", seen.flops),
    ]
    return [(name, value) for name, value in found if value or name == "steps"]


COPIES = {"copy in": "copies in", "copy out": "copies out", "product": "products"}


def lines(seen):
    found = {}
    for step in seen.steps:
        if step.place:
            count = found.setdefault((step.place.file, step.place.line), Counter())
            count.update({"steps": 1, "waits": int(step.kind == "wait")})
    for flight in seen.flights:
        count = found.setdefault((flight.place.file, flight.place.line), Counter())
        count[COPIES[flight.kind]] += 1
    return {where: tuple(count[head] for head in HEADS) for where, count in found.items()}


def heat(numbers):
    return numbers[0]


def table(seen):
    """A row per copy or product of a line, all programs together."""
    heads = ["what", "name", "times", "with work meanwhile", "bytes", "operations"]
    groups = {}
    for flight in seen.flights:
        key = flight.place.file, flight.place.line, flight.kind, flight.name
        groups.setdefault(key, []).append(flight)
    body = []
    for (_, _, kind, name), flights in sorted(groups.items()):
        busy = sum(bool(seen.meanwhile(x, "read", "write", "compute")) for x in flights)
        moved, done = sum(x.bytes for x in flights), sum(x.flops for x in flights)
        body.append((flights[0].place, [kind, name, len(flights), busy, moved, done]))
    return heads, body


def steps(seen):
    """The steps of the program that the timeline shows."""
    own = [x for x in seen.steps if x.program == shown(seen)]
    totals = Counter((x.place.file, x.place.line) for x in own if x.place)
    made = [((x.place.file, x.place.line), _step(seen, x)) for x in own[:MOST] if x.place]
    return made, list(range(len(made))), dict(totals)


def shown(seen):
    """The program of the timeline: the one that a fault ended, or the first."""
    return seen.steps[-1].program if seen.faults and seen.steps else 0


def _step(seen, step):
    flying = [x for x in seen.flights if x.program == step.program]
    flying = [x.name for x in flying if x.start <= step.n < (x.end or len(seen.steps) + 1)]
    said = f"line {step.place.line}, {in_words(step)}; "
    said += f"in flight: {', '.join(flying)}" if flying else "nothing is in flight"
    return {"said": said, "who": f"program {step.program}", "step": step.n}


def in_words(step):
    """ "wait ready", "compute 3 tiles"."""
    return f"{step.kind} {many(int(step.what), 'tile') if step.kind == 'compute' else step.what}"


def maps(seen):
    for name, shape, strides, op, counts in seen.touched:
        at = np.flatnonzero(counts)
        if len(at):
            elements = element_numbers(at, 1, shape, strides, 1)
            yield memory_map(name, shape, op, elements, counts[at])
