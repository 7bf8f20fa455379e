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


def launch(trace):
    return f"{many(trace.programs, 'program')}, grid {tuple(trace.grid)}"


def facts(trace):
    kinds = [(label, len(trace.of(kind))) for kind, label in COPIES.items()]
    rows = [
        ("steps", len(trace.steps)),
        *kinds,
        ("bytes copied in", trace.bytes("copy in")),
        ("bytes copied out", trace.bytes("copy out")),
        ("operations of the products", trace.flops),
    ]
    return [(name, value) for name, value in rows if value or name == "steps"]


COPIES = {"copy in": "copies in", "copy out": "copies out", "product": "products"}


def lines(trace):
    counts = {}
    for step in trace.steps:
        if step.place:
            count = counts.setdefault((step.place.file, step.place.line), Counter())
            count.update({"steps": 1, "waits": int(step.kind == "wait")})
    for flight in trace.flights:
        count = counts.setdefault((flight.place.file, flight.place.line), Counter())
        count[COPIES[flight.kind]] += 1
    return {where: tuple(count[head] for head in HEADS) for where, count in counts.items()}


def heat(numbers):
    return numbers[0]


def table(trace):
    """A row per copy or product of a line, all programs together."""
    heads = ["what", "name", "times", "with work meanwhile", "bytes", "operations"]
    groups = {}
    for flight in trace.flights:
        key = flight.place.file, flight.place.line, flight.kind, flight.name
        groups.setdefault(key, []).append(flight)
    body = []
    for (_, _, kind, name), flights in sorted(groups.items()):
        busy = sum(bool(trace.meanwhile(x, "read", "write", "compute")) for x in flights)
        moved, flops = sum(x.bytes for x in flights), sum(x.flops for x in flights)
        body.append((flights[0].place, [kind, name, len(flights), busy, moved, flops]))
    return heads, body


def steps(trace):
    """The steps of the program that the timeline shows."""
    own = [x for x in trace.steps if x.program == shown(trace)]
    totals = Counter((x.place.file, x.place.line) for x in own if x.place)
    placed_steps = [((x.place.file, x.place.line), _step(trace, x)) for x in own[:MOST] if x.place]
    return placed_steps, list(range(len(placed_steps))), dict(totals)


def shown(trace):
    """The program of the timeline: the one that a fault ended, or the first."""
    return trace.steps[-1].program if trace.faults and trace.steps else 0


def _step(trace, step):
    flying = [x for x in trace.flights if x.program == step.program]
    flying = [x.name for x in flying if x.start <= step.n < (x.end or len(trace.steps) + 1)]
    caption = f"line {step.place.line}, {in_words(step)}; "
    caption += f"in flight: {', '.join(flying)}" if flying else "nothing is in flight"
    return {"said": caption, "who": f"program {step.program}", "step": step.n}


def in_words(step):
    """ "wait ready", "compute 3 tiles"."""
    return f"{step.kind} {many(int(step.what), 'tile') if step.kind == 'compute' else step.what}"


def maps(trace):
    for name, shape, strides, op, counts in trace.touched:
        at = np.flatnonzero(counts)
        if len(at):
            elements = element_numbers(at, 1, shape, strides, 1)
            yield memory_map(name, shape, op, elements, counts[at])
