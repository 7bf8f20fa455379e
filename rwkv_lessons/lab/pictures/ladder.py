"""The ladder from the records: one bar and one line per rung, next to the CUDA C original.

ladder(here="05_float4")   prints the table and returns the picture, with that lesson marked
steps("wkv5")              the same as data
"""

from dataclasses import dataclass, replace

from rwkv_lessons.operations import LADDERS, operation_of
from rwkv_lessons.records.lookup import CARD, record
from rwkv_lessons.records.schema import Row

HEIGHT, WIDTH = 3.6, 8  # inches
FINISHED_LABEL = "finished kernel"


@dataclass(frozen=True)
class Step:
    """One rung: our row and the original's, None where there is no record."""

    label: str
    lesson: str | None  # None: the finished kernel
    row: Row | None
    original: Row | None
    hidden: bool = False  # its times are for the reader to predict

    @property
    def ms(self):
        return None if self.hidden or not self.row else self.row.median_ms

    @property
    def original_ms(self):
        return None if self.hidden or not self.original else self.original.median_ms


def steps(operation="wkv5", card=CARD, folder=None):
    """The rungs of `operation` from the bottom up, the library's finished kernel last."""
    ours = _recorded(f"{operation}-ladder", card, folder)
    original = _recorded(f"rwkv-cuda-{operation}", card, folder)
    ladder = LADDERS[operation]
    found = [
        Step(rung.label, rung.stem, _row(ours, rung.method), _row(original, rung.original))
        for rung in ladder.rungs
    ]
    return [*found, Step(FINISHED_LABEL, None, _row(ours, ladder.finished), None)]


def table(climbed, here=None):
    """The steps as text, in columns; `here` is a lesson, marked with an arrow."""
    first = next((step.ms for step in climbed if step.ms), None)
    lines = ["   " + _line("", "ms", "faster ×", "CUDA C ms", "registers", "local B")]
    for step in climbed:
        faster = first / step.ms if step.ms else None
        cells = [_text(step.ms, ".2f"), _text(faster, ".1f"), _text(step.original_ms, ".2f")]
        cells = ["?"] * 3 if step.hidden else cells
        cells += [_text(step.row and step.row.registers), _text(step.row and step.row.local_bytes)]
        arrow = "→" if here and step.lesson == here else " "
        lines.append(f"{arrow}  " + _line(step.label, *cells))
    return "\n".join(line.rstrip() for line in lines)


def source(operation="wkv5", card=CARD, folder=None):
    """What was measured, where and when, in two lines."""
    ours = _recorded(f"{operation}-ladder", card, folder)
    original = _recorded(f"rwkv-cuda-{operation}", card, folder)
    if ours is None:
        lines = [f"Ours: not recorded on an {card} yet"]
    else:
        where = ours.provenance
        row, sizes = ours.rows[0], operation_of(operation).sizes(ours.rows[0].shape)
        what = f"{operation_of(operation).timed}, {row.dtype}, {sizes}"
        lines = [f"{what}: {where.card}, {where.date}, commit {where.commit}"]
    if original is not None:
        where = original.provenance
        lines.append(f"CUDA C: RWKV-CUDA's kernels on an {where.card}, {where.date}")
    return "\n".join(lines)


def draw(axes, climbed, here=None, floor_ms=None, what="Forward"):
    """Bars of device time, the shorter the better; a black mark where the CUDA C original is."""
    from rwkv_lessons.lab.pictures.style import INK, OKABE_ITO

    for y, step in enumerate(climbed):
        marked = here is not None and step.lesson == here
        if step.ms:
            axes.barh(
                y, step.ms, height=0.62, color=OKABE_ITO["vermillion" if marked else "sky blue"]
            )
        if step.original_ms:
            axes.plot([step.original_ms] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=2)
        end = max(filter(None, (step.ms, step.original_ms)), default=0)
        weight = "bold" if marked else "normal"
        place = {"textcoords": "offset points", "va": "center", "fontweight": weight}
        axes.annotate(_times(step), (end, y), (5, 0), **place)
    if any(step.original_ms for step in climbed):
        axes.plot([], [], color=INK, linewidth=2, label="C: the original in CUDA C")
    if floor_ms:
        label = f"roofline of this card: {floor_ms:.2f} ms"
        axes.axvline(floor_ms, color=INK, linewidth=1, linestyle=":", label=label)
    axes.set_yticks(range(len(climbed)), [step.label for step in climbed])
    for tick, step in zip(axes.get_yticklabels(), climbed, strict=True):
        tick.set_fontweight("bold" if here is not None and step.lesson == here else "normal")
    axes.set_ylim(len(climbed) - 0.4, -0.6)  # the ladder is read downwards, as the lessons are
    axes.set_xlim(0, 1.3 * max(axes.get_xlim()[1], 1e-3))  # room for the numbers
    axes.set_xlabel(f"{what.lower()} pass, ms on the device")
    if axes.get_legend_handles_labels()[0]:  # above the bars, where it covers none
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def floor_ms(operation="wkv5", card=CARD, folder=None):
    """Fewest bytes or flops at the card's measured ceilings; None without these records."""
    from rwkv_lessons.operations import work
    from rwkv_lessons.records.rates import floor_seconds

    ours, limits = (_recorded(x, card, folder) for x in (f"{operation}-ladder", "ceilings"))
    if ours is None or limits is None:
        return None
    row = ours.rows[0]
    return 1e3 * floor_seconds(work(operation, row.shape, row.dtype), row.dtype, limits.ceilings)


def figure(operation="wkv5", here=None, card=CARD, folder=None, hidden=False):
    """The picture of `draw` as a matplotlib Figure in the house style."""
    from rwkv_lessons.lab.pictures import style

    drawn = style.figure(HEIGHT, WIDTH)
    climbed, least = steps(operation, card, folder), floor_ms(operation, card, folder)
    climbed = _without(climbed, here) if hidden else climbed
    draw(drawn.subplots(), climbed, here, least, operation_of(operation).timed)
    return drawn


def _without(climbed, here):
    return [replace(step, hidden=step.lesson == here) for step in climbed]


def ladder(here=None, operation="wkv5", hidden=False):
    """Prints the ladder's table; returns its picture, for a cell to end with.

    Args:
        here: the stem of a lesson, "05_float4", which is marked in both.
        operation: a key of `LADDERS`.
        hidden: a question mark stands for that lesson's times, until you have predicted them.

    Raises:
        ValueError: `here` is no lesson of this ladder.
    """
    from rwkv_lessons.lab.pictures.style import Picture

    climbed = steps(operation)
    lessons = [step.lesson for step in climbed if step.lesson]
    if here is not None and here not in lessons:
        raise ValueError(f"here is {here!r}, needs one of {', '.join(dict.fromkeys(lessons))}")
    recorded = sum(step.ms is not None for step in climbed)
    climbed = _without(climbed, here) if hidden else climbed
    print(table(climbed, here), source(operation), sep="\n\n")
    text = f"The ladder of {operation}: {recorded} of {len(climbed)} steps recorded"
    text += f", {here} marked" if here else ""
    return Picture(figure(operation, here, hidden=hidden), text)


def against_c(original, kernel, *before, operation="wkv5"):
    """Prints the registers of the CUDA C `original` beside those of `kernel`, and its early loads.

    Args:
        original: its name in RWKV-CUDA, "v1a".
        kernel: ours.
        before: instructions: the loads that are started ahead of the first of these are counted.
    """
    from ..evidence.cuda import WKV5_SIGNATURE
    from ..machine_code.assembly import assembly, available

    if missing := available():
        print(f"No machine code here: {missing}")
        return
    theirs = record(f"rwkv-cuda-{operation}").row(original, dtype="float32")
    mine = assembly(kernel, *WKV5_SIGNATURE)
    print(f"CUDA C: {theirs.registers} registers; ours: {mine.registers}, and", end=" ")
    print(f"{mine.started('LDG', *before)} loads before the first {' or '.join(before)}")


def _recorded(name, card, folder):
    try:
        return record(name, card, folder)
    except LookupError:
        return None


def _row(found, method):
    """The first row of `method`: a ladder is recorded at one shape, float32 first."""
    return next((row for row in found.rows if row.method == method), None) if found else None


def _times(step):
    if step.hidden:
        return "?"
    ours = f"{step.ms:.2f} ms" if step.ms else "not recorded yet"
    return f"{ours} (C: {step.original_ms:.2f})" if step.original_ms else ours


def _line(label, *cells):
    return f"{label:23}" + "".join(f"{cell:>11}" for cell in cells)


def _text(value, form="d"):
    return "–" if value is None else format(value, form)
