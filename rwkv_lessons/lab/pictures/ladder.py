"""The ladder from the records: one bar and one line per rung, next to the CUDA C original.

ladder("05_float4")                  prints the table and returns the picture, up to lesson 04
ladder("05_float4", measured=True)   and with lesson 05's rung, once it has been measured
steps("wkv5")                        all of it, as data
"""

from dataclasses import dataclass, replace

from rwkv_lessons.operations import LADDERS, operation_of
from rwkv_lessons.records.lookup import CARD, record
from rwkv_lessons.records.schema import Measurement

HEIGHT, WIDTH = 3.6, 8  # inches
FINISHED_LABEL = "finished kernel"


@dataclass(frozen=True)
class Step:
    """One rung: our row and the original's, None where there is no record."""

    label: str
    lesson: str | None  # None: the finished kernel
    row: Measurement | None
    original: Measurement | None
    hidden: bool = False  # its numbers are for the reader to predict, or not reached yet

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
    first = climbed[0].ms  # what the others are compared with, or nothing
    lines = ["   " + _line("", "ms", "faster ×", "CUDA C ms", "registers", "local B")]
    for step in climbed:
        faster = first / step.ms if first and step.ms else None
        cells = [_text(step.ms, ".2f"), _text(faster, ".1f"), _text(step.original_ms, ".2f")]
        cells += [_text(step.row and step.row.registers), _text(step.row and step.row.local_bytes)]
        cells = ["?"] * len(cells) if step.hidden else cells
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


def figure(operation="wkv5", here=None, card=CARD, folder=None, measured=True):
    """The picture of `draw` as a Figure in the house style; without `here`, all of it."""
    from rwkv_lessons.lab.pictures import style

    drawn = style.figure(HEIGHT, WIDTH)
    climbed, least = steps(operation, card, folder), floor_ms(operation, card, folder)
    climbed = reached(climbed, here, measured) if here else climbed
    draw(drawn.subplots(), climbed, here, least, operation_of(operation).timed)
    return drawn


def reached(climbed, here, measured):
    """The steps with every one hidden that a reader of lesson `here` has not measured yet.

    The finished kernel is reached with the last rung.
    """
    last = max(step.lesson for step in climbed if step.lesson)

    def hidden(step):
        lesson = step.lesson or last
        return lesson > here or (lesson == here and not measured)

    return [replace(step, hidden=hidden(step)) for step in climbed]


def ladder(here, operation="wkv5", measured=False):
    """Prints the ladder's table; returns its picture, for a cell to end with.

    A question mark stands for every rung above, so that no prediction is spoiled.

    Args:
        here: the stem of a lesson, "05_float4". Its rung is marked in both, if it has one.
        operation: a key of `LADDERS`.
        measured: whether that lesson's own rung is shown, too.

    Raises:
        ValueError: `here` is no lesson, or there is no such ladder.
    """
    from rwkv_lessons.lab.course.exercises import stems
    from rwkv_lessons.lab.pictures.style import Picture

    if here not in stems():
        raise ValueError(f"here is {here!r}, needs one of {', '.join(stems())}")
    if operation not in LADDERS:
        raise ValueError(f"operation is {operation!r}, needs one of {', '.join(LADDERS)}")
    climbed = reached(steps(operation), here, measured)
    print(table(climbed, here), source(operation), sep="\n\n")
    shown = sum(step.ms is not None for step in climbed)
    text = f"The ladder of {operation} in lesson {here}: {shown} of {len(climbed)} steps shown"
    return Picture(figure(operation, here, measured=measured), text)


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
