"""What a kernel in Gluon has in flight: copies and products against the steps of a program."""

import re

from . import style
from .style import Picture

COLOURS = {
    "copy in": style.OKABE_ITO["sky blue"],
    "product": style.OKABE_ITO["orange"],
    "copy out": style.OKABE_ITO["vermillion"],
}
THREADS = {
    "start": ("starts", style.OKABE_ITO["black"]),
    "wait": ("waits", style.OKABE_ITO["yellow"]),
    "read": ("reads a tile", style.OKABE_ITO["green"]),
    "compute": ("computes", style.OKABE_ITO["blue"]),
    "write": ("writes a tile", style.OKABE_ITO["purple"]),
}
ORDER = ("copy in", "product", "copy out")
FACTORS = re.compile(r"warpgroup_mma\((\w+)[^,]*, (\w+)")


def timeline(trace, program=0, steps=None):
    """What a program's threads do, step by step, and what is on its way meanwhile.

    Args:
        trace: a `GluonTrace`.
        steps: (first, last) of those to show; all by default.
    """
    own = [x for x in trace.steps if x.program == program]
    first, last = steps or (own[0].n, own[-1].n)
    lanes = _lanes([x for x in trace.flights if x.program == program], first, last)
    figure = style.figure(0.9 + 0.27 * (len(lanes) + 1))
    ax = figure.subplots()
    for step in own:
        if first <= step.n <= last and step.kind in THREADS:
            style.box(ax, step.n, -0.4, 0.9, 0.8, THREADS[step.kind][1])
    for y, (_, flights) in enumerate(lanes, 1):
        for flight in flights:
            end = (flight.end or last) + 0.45
            start, colour = max(flight.start + 0.45, first), COLOURS[flight.kind]
            style.box(ax, start, y - 0.36, min(end, last + 1) - start, 0.72, colour)
            if flight.note and end - start > 3:
                ax.text(start + 0.3, y, flight.note, va="center", size=7)
    ax.set_yticks(range(len(lanes) + 1), ["threads", *(name for name, _ in lanes)])
    ax.set(xlim=(first, last + 1), ylim=(len(lanes) + 0.6, -0.7), xlabel="step of the program")
    for name, colour in THREADS.values():
        ax.plot([], [], "s", color=colour, label=name)
    for kind in ORDER:
        if any(x.kind == kind for _, flights in lanes for x in flights):
            ax.plot([], [], "s", color=COLOURS[kind], label=f"{kind} on its way")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=8, fontsize=7, handletextpad=0.1,
              columnspacing=1)  # fmt: skip
    return Picture(figure, _caption(trace, program))


def _lanes(flights, first, last):
    """[(name, flights)]: those of one kind and name in a row of their own."""
    lanes = {}
    for kind in ORDER:
        for flight in flights:
            if flight.kind == kind and flight.start <= last and (flight.end or last) >= first:
                name = {"copy in": "→ {}", "copy out": "← {}"}.get(kind, "{}").format(flight.name)
                text = flight.place.text.replace(".permute((1, 0))", "")
                if kind == "product" and (match := FACTORS.search(text)):
                    name = f"{match[1]} · {match[2]} → {flight.name}"
                lanes.setdefault((kind, name), []).append(flight)
    return [(name, flights) for (_, name), flights in lanes.items()]


def _caption(trace, program):
    lines = []
    for kind in ORDER:
        if flights := trace.of(kind, program):
            noun = {"copy in": "copies in", "copy out": "copies out", "product": "products"}[kind]
            busy = sum(bool(trace.meanwhile(x, "read", "write", "compute")) for x in flights)
            lines.append(
                f"{len(flights)} {noun}, {busy} of them with work meanwhile, "
                f"{trace.waits(kind) // trace.programs} waits"
            )
    return "\n".join(lines)
