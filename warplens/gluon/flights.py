"""What is on its way in a program, and what its threads do meanwhile, step by step.

A step is what threads do that concerns shared memory, copies or products: a start, a wait, a fence,
a tile read or written; and between two of these, as one step, all that is computed.
"""

import re
import sys
from dataclasses import dataclass, field

from ..faults import Place
from .registers import Value

NAMED = re.compile(r"^(\w+)(?:: [\w.]+)? = ")


@dataclass
class Flight:
    """A copy or a product, from the step that starts it to the one that has waited for it.

    Attributes:
        kind: "copy in", "copy out", "product".
        name: the tile that it fills or stores, or the name that a product has in the kernel.
        bytes: moved by a copy; flops: of a product.
        end, until: the step and the place of the wait; None while it is on its way.
    """

    kind: str
    name: str
    program: int
    start: int
    place: Place
    bytes: int = 0
    flops: int = 0
    end: int | None = None
    until: Place | None = None
    note: str = ""  # of a copy in: which phase of its barrier it belongs to

    def __str__(self):
        noun = {"copy in": "copy to", "copy out": "copy of", "product": "product"}[self.kind]
        return f"the {noun} {self.name} of line {self.place.line}"


@dataclass(frozen=True)
class FlightStep:
    """What the threads of a program do at once.

    Attributes:
        kind: "start", "announce", "wait", "read", "write", "fence", "barrier", "global memory",
            "compute".
        what: of which tile, barrier or product; of "compute", how many tiles are made.
        ended: the flights that a wait was the end of.
    """

    n: int
    kind: str
    what: str
    program: int
    place: Place | None
    ended: tuple = field(default=())


class Log:
    """Counts steps; keeps them, and the flights, where `keep`."""

    def __init__(self, keep=False):
        self.keep, self.n, self.program, self.codes = keep, 0, 0, set()
        self.role = None  # of the warps that run now, where they have different ones
        self.steps, self.flights, self.created = [], [], Value.created

    def here(self):
        """The `Place` in the kernel, or in a function of its, that is running."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code not in self.codes:
            frame = frame.f_back
        return Place(frame.f_code, frame.f_lineno) if frame else None

    def step(self, kind, what, ended=()):
        """The number of a new step, before which all that was computed is one of its own."""
        if not self.keep:
            return self.n
        place = self.here()
        if Value.created > self.created:
            self._add("compute", str(Value.created - self.created), place)
        self._add(kind, what, place, tuple(ended))
        self.created = Value.created
        return self.n

    def _add(self, *about):
        self.n += 1
        kind, what, place, *ended = about
        self.steps.append(FlightStep(self.n, kind, what, self.program, place, *ended))

    def start(self, kind, name, **sizes):
        """A new `Flight`, started by the line that is running."""
        flight = Flight(kind, name, self.program, self.n, self.here(), **sizes)
        if self.keep:
            flight.start = self.step("start", f"{kind} {name}")
            self.flights.append(flight)
        return flight

    def wait(self, what, flights):
        """The step that has waited for these flights."""
        n, place = self.step("wait", what, flights), self.here()
        for flight in flights:
            flight.end, flight.until = n, place


def name_in(place, otherwise):
    """What the line at `place` calls what it makes: "s_k" of "s_k = gl.allocate_…"."""
    match = NAMED.match(place.text) if place else None
    return match[1] if match else otherwise
