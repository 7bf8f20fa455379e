"""The pictures of a page: the banks of one request, and what a program in Gluon has in flight."""

from ..cuda.banks import BANKS
from .markup import box, joined, label, picture
from .of_gluon import COPIES, MOST, in_words, shown

ROW, EDGE = 20, 46  # units: a row and a bank, and what is left of them
STEP, BAR = 14, 18  # units: a step across, a lane down
KINDS = {"copy in": "copyin", "product": "product", "copy out": "copyout"}
ARROWS = {"copy in": "→ ", "product": "", "copy out": "← "}


def banks(step):
    """The banks of shared memory across, a row for each wavefront, in it the lanes served."""
    rows = [label(EDGE + ROW * (n + 0.5), 12, n, "middle small") for n in range(BANKS)]
    for n, (served, extra) in enumerate(step["passes"]):
        y = 18 + ROW * n
        rows.append(label(0, y + 14, f"{n + 1}", "small"))
        rows.append(box(EDGE, y, ROW * BANKS, ROW - 1, "faint"))
        for bank, lane in served.items():
            kind = "extra" if extra else step["op"]
            says = f"wavefront {n + 1}: bank {bank} serves lane {lane}"
            rows.append(box(EDGE + ROW * bank, y, ROW - 1, ROW - 1, kind, says))
            rows.append(label(EDGE + ROW * (bank + 0.5), y + 14, lane, f"middle small on-{kind}"))
    wide, tall = EDGE + ROW * BANKS, 18 + ROW * len(step["passes"])
    title = "Banks of shared memory, the lanes that each serves in each wavefront"
    says = f"{step['who']}, {step['said']}"
    return picture(wide, tall, title, says, *rows, class_="wide", style=f"max-width:{wide}px")


def timeline(trace, key_of, in_notebook=False):
    """The steps of a program across; below, a bar for each copy and product in flight.

    Args:
        key_of: the key of a `Place`, or None.
    """
    program = shown(trace)
    own = [x for x in trace.steps if x.program == program][:MOST]
    if not own:
        return None
    first, last = own[0].n, own[-1].n
    rows = _lanes([x for x in trace.flights if x.program == program and x.start <= last])
    left = 8 * max([len(name) for name, _ in rows] + [7])

    def x(n):
        return left + STEP * (n - first)

    parts = [label(0, 14, "threads")]
    for step in own:
        says = f"step {step.n}, {step.place or 'no line'}: {in_words(step)}"
        kind = step.kind.split()[0]
        data = {"data_step": step.n, "data_line": key_of(step.place)}
        parts.append(box(x(step.n), 2, STEP - 1, BAR - 3, f"step {kind}", says, **data))
    for n, (name, flights) in enumerate(rows, 1):
        parts.append(label(0, BAR * n + 13, name))
        for flight in flights:
            start, end = max(flight.start, first), min(flight.end or last + 1, last + 1)
            until = f"until step {flight.end}, {flight.until}" if flight.end else "never waited for"
            says = f"{flight.kind} {flight.name}, from step {flight.start}, {flight.place}, {until}"
            wide = STEP * max(end - start, 0.5)
            where = x(start) + STEP / 2, BAR * n + 1, wide, BAR - 3
            data = {"data_line": key_of(flight.place)}
            parts.append(box(*where, KINDS[flight.kind], says, **data))
    wide, tall = left + STEP * (last - first + 2), BAR * (len(rows) + 1) + 4
    title = f"Timeline of program {program}: its steps, and what is in flight meanwhile"
    size = {"width": f"{wide}", "height": f"{tall}", "class_": "timeline"}
    return picture(wide, tall, title, caption(trace, program), joined(*parts), **size)


def caption(trace, program):
    """What the timeline shows, in words."""
    parts = []
    for kind in KINDS:
        flights = trace.of(kind, program)
        busy = sum(bool(trace.meanwhile(x, "read", "write", "compute")) for x in flights)
        if flights:
            parts.append(f"{len(flights)} {COPIES[kind]}, {busy} of them with work meanwhile")
    steps = sum(x.program == program for x in trace.steps)
    cut = f"; the first {MOST} of {steps} steps are drawn" if steps > MOST else ""
    return ("; ".join(parts) or "nothing is ever in flight") + cut


def _lanes(flights):
    """[(name, flights)]: those of one kind and name share a row; those that overlap do not."""
    rows = []
    for kind, arrow in ARROWS.items():
        for flight in [x for x in flights if x.kind == kind]:
            name = arrow + flight.name
            for row_name, there in rows:
                if row_name == name and (there[-1].end or 1 << 60) <= flight.start:
                    there.append(flight)
                    break
            else:
                rows.append((name, [flight]))
    return rows
