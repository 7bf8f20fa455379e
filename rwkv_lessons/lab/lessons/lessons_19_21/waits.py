"""Lesson 19's kernel with its waits moved: what is in flight then, and what is overwritten."""

from warplens.pictures.in_flight import COLOURS, ORDER, THREADS
from warplens.pictures.movable import Drawing, movable
from warplens.pictures.style import INK, OKABE_ITO

from ...course import exercises
from .evidence import trace

ID = "19_copies_in_flight.kernel"
WAIT = "        mbarrier.wait(ready.index(i), phase)\n"
READ = "        b_x = s_x.index(i).load(ROWS).to(gl.float32)\n"
STORE_WAIT = "        tma.store_wait(0)\n"
WRITE = "        s_w.store(b_w.to(gl.bfloat16))\n"
STAGES = {"the other stage": "s_x.index(1 - i), pred", "this tile's stage": "s_x.index(i), pred"}
PLACES = ("before", "after", "nowhere")
STEP, ROW, LEFT, TOP = 13, 20, 78, 26  # pixels: a step, a lane, names, the legend
MOST = 38  # steps of three tiles, and room for a word


def movable_waits(launch):
    """The timeline of the kernel, with sliders for its two waits and for the next tile's stage.

    Every position is a run in the simulator, which stops where a GPU could go wrong.
    """

    def draw(wait_for_the_tile, store_wait, the_next_tile_goes_to):
        kernel = _kernel(wait_for_the_tile, store_wait, the_next_tile_goes_to)
        gluon_trace = trace(kernel, launch)
        return _timeline(gluon_trace), _caption(gluon_trace)

    knobs = {"wait for the tile": [f"{x} its read" if x != "nowhere" else x for x in PLACES]}
    knobs |= {"store wait": [f"{x} s_w is written" if x != "nowhere" else x for x in PLACES]}
    return movable(knobs | {"the next tile goes to": STAGES}, draw)


def _kernel(wait, store_wait, stage):
    text = exercises.solved(ID)
    text = _moved(text, WAIT, READ, wait.split()[0])
    text = _moved(text, STORE_WAIT, WRITE, store_wait.split()[0])
    text = _replaced(text, STAGES["the other stage"], STAGES[stage])
    return exercises.defined(ID, text, f"<{ID}, {wait}, {store_wait}, {stage}>")


def _moved(text, wait, line, place):
    """A wait before a line or after it, or left out."""
    both = {"before": wait + line, "after": line + wait, "nowhere": line}[place]
    return _replaced(_replaced(text, wait, ""), line, both)


def _replaced(text, old, new):
    if text.count(old) != 1:
        raise ValueError(f"{old.strip()!r} stands {text.count(old)} times in the solution, want 1")
    return text.replace(old, new)


def _timeline(gluon_trace):
    lanes = {}
    for kind in ORDER:
        for flight in gluon_trace.of(kind):
            lanes.setdefault((kind, flight.name), []).append(flight)
    last = gluon_trace.steps[-1].n
    drawing = Drawing(LEFT + STEP * MOST, TOP + ROW * 4 + 4)
    for x, (name, colour) in enumerate(THREADS.values()):
        drawing.box(4 + 100 * x, 4, 9, 9, colour)
        drawing.write(17 + 100 * x, 12, name)
    drawing.write(LEFT - 6, TOP + 13, "threads", anchor="end")
    for step in gluon_trace.steps:
        if step.kind in THREADS:
            drawing.box(_x(step.n), TOP + 2, STEP - 2, ROW - 5, THREADS[step.kind][1])
    for y, ((kind, name), flights) in enumerate(lanes.items(), 1):
        arrow = "→" if kind == "copy in" else "←"
        drawing.write(LEFT - 6, TOP + ROW * y + 13, f"{arrow} {name}", anchor="end")
        for flight in flights:
            start, end = _x(flight.start), _x((flight.end or last) + 1)
            drawing.box(start, TOP + ROW * y + 2, end - start, ROW - 5, COLOURS[kind])
    if gluon_trace.faults:
        x = _x(last + 1)
        drawing.line(x, TOP, x, TOP + ROW * 4, OKABE_ITO["vermillion"])
        drawing.write(x + 4, TOP + ROW * 4, "stopped here", INK)
    return drawing


def _x(step):
    return LEFT + STEP * (step - 1)


def _caption(gluon_trace):
    if not gluon_trace.faults:
        copies = gluon_trace.of("copy in")
        busy = gluon_trace.hidden("copy in")
        return f"right: {busy} of {len(copies)} copies in have work beside them"
    fault, _, *because = str(gluon_trace.faults[0]).splitlines()
    return f"{fault}, {' '.join(because[:1]).strip()}"
