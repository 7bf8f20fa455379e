"""A warp's requests one by one, to be stepped through with buttons or arrow keys.

stepper(trace(kernel, grid, block, *args))    the last line of a notebook's cell
"""

import html
import json
from pathlib import Path

import numpy as np

from ..cuda.banks import BANKS, WORD, schedule
from ..cuda.memory_model import SECTOR
from ..wording import many
from .colours import FAINT, INK, OF_OP, OKABE_ITO, PAPER

DRAWING = Path(__file__).with_name("draw_request.js")
SCRIPT = Path(__file__).with_name("steps.js")
LONGEST = 72  # characters of a source line


class Stepper:
    """Requests of one warp; a notebook shows it, and `print` says all of it.

    Attributes:
        kernel: its name; steps: a dictionary for each request.
    """

    def __init__(self, kernel, steps):
        self.kernel, self.steps = kernel, steps

    def __str__(self):
        return "\n".join(f"{n}. {step['said']}" for n, step in enumerate(self.steps, 1))

    def __repr__(self):
        return f"{self.kernel}: {many(len(self.steps), 'request')} of a warp"

    def _repr_html_(self):
        colours = {"faint": FAINT, "ink": INK, "paper": PAPER, "extra": OKABE_ITO["orange"]}
        safe = as_data({"steps": self.steps, "colours": OF_OP | colours})
        script = "".join(file.read_text(encoding="utf-8") for file in (DRAWING, SCRIPT))
        label = html.escape(f"requests of a warp of {self.kernel}, step by step", quote=True)
        return (
            f'<div class="stepper" role="group" tabindex="0" aria-label="{label}">'
            f'<script type="application/json">{safe}</script>'
            '<svg width="0" height="0" aria-hidden="true"></svg>'
            f"<noscript><pre>{html.escape(str(self))}</pre></noscript></div>"
            f"<script>{{{script}}}</script>"
        )


def stepper(trace, block=0, warp=0, most=100):
    """The first requests of a warp, in the order of execution.

    Args:
        trace: of a kernel of numba.
        block: which of the traced blocks; warp: of the block; both counted from 0.
        most: so many requests at most.

    Returns:
        A `Stepper`.

    Raises:
        ValueError: the block has no such warp, or it asks for nothing.
        TypeError: the trace is not of numba.
    """
    if not hasattr(trace, "request"):
        raise TypeError(f"{trace.kernel} is not a numba kernel: it has no warps to step through")
    steps = []
    n = len(np.unique(trace.events.request[trace.events.block < block]))
    while len(steps) < most:
        try:
            request = trace.request(nth=n)
        except ValueError:
            break
        n += 1
        if request.block != trace.blocks[block] or request.warp > warp:
            break
        if request.warp == warp and request.row.space in ("global", "shared"):
            steps.append(step(request.row, request.addresses))
    if not steps:
        raise ValueError(f"warp {warp} of block {block} asks for nothing")
    return Stepper(trace.kernel, steps)


def as_data(data):
    """JSON that may stand in a <script>."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def step(row, addresses):
    """One request as `drawRequest` takes it, and in words.

    Args:
        row: its `CudaCount`, of global or shared memory.
        addresses: of each lane, in bytes from the start of the array; None where it is off.
    """
    active = [(lane, a) for lane, a in enumerate(addresses) if a is not None]
    verb = {"load": "read", "store": "write", "atomic": "update"}[row.op]
    caption = f"line {row.line}, {row.array} ({row.space}): {many(len(active), 'lane')} {verb} "
    caption += f"{many(row.width, 'byte')} each, "
    source = row.place.text
    request = {
        "op": row.op,
        "space": row.space,
        "source": source if len(source) <= LONGEST else source[: LONGEST - 1] + "…",
        "width": row.width,
        "lanes": active,
    }
    if row.space == "shared":
        wavefronts = schedule(*zip(*active, strict=True), row.width, row.op)
        extra = sum(more for _, more in wavefronts)
        caption += f"{many(len(wavefronts), 'wavefront')}, {many(extra, 'conflict')}"
        request["passes"] = [
            [{bank: lanes[0] for bank, lanes in served.items()}, more]
            for served, more in wavefronts
        ]
        request["banks"] = BANKS
    else:
        touched = {b // SECTOR for _, a in active for b in (a, a + row.width - 1)}
        bytes_asked = len({a + i for _, a in active for i in range(row.width)})
        caption += f"{many(len(touched), 'sector')}, {bytes_asked} of {SECTOR * len(touched)} bytes"
        request["sectors"] = sorted(touched)
        request["sector"], request["word"] = SECTOR, WORD
    return request | {"said": caption}
