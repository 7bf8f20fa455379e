"""The ladder from the records: one bar and one line per rung, next to the CUDA C original.

ladder("05_float4")                  prints the table and returns the picture, up to lesson 04
ladder("05_float4", measured=True)   and with lesson 05's rung, once it has been measured
steps("wkv5")                        all of it, as data
"""

from dataclasses import dataclass, replace

from rwkv_lessons.operations import LADDERS, operation_of
from rwkv_lessons.operations.work import MULTIPLY_ADDS
from rwkv_lessons.records.lookup import GPU, record
from rwkv_lessons.records.schema import Measurement

HEIGHT, WIDTH = 3.6, 8  # inches
FINISHED_LABEL = "finished kernel"


@dataclass(frozen=True)
class LadderStep:
    """One rung: our rows and the original's, None where there is no record."""

    label: str
    lesson: str | None  # None: a kernel of the library
    rows: dict[str, Measurement | None]  # by dtype, in the order in which they are shown
    original: Measurement | None = None
    hidden: bool = False  # its numbers are for the reader to predict, or not reached yet
    always_shown: bool = False  # from the start, to compare with

    @property
    def row(self):
        return self.rows[self._dtype]

    @property
    def ms(self):
        return self.ms_in(self._dtype)

    @property
    def _dtype(self):
        return "float32" if "float32" in self.rows else next(iter(self.rows))

    @property
    def original_ms(self):
        return None if self.hidden or not self.original else self.original.median_ms

    def ms_in(self, dtype):
        row = self.rows[dtype]
        return None if self.hidden or not row else row.median_ms


def steps(operation="wkv5", gpu=GPU, folder=None):
    """The rungs of `operation` from the bottom up, the library's finished kernel last.

    A kernel of the library that the ladder's record has not, at this shape and in this dtype, is
    looked for in the library's own.
    """
    ladder, entry = LADDERS[operation], operation_of(operation)
    ladder_record = _recorded(f"{operation}-ladder", gpu, folder)
    library = _recorded(entry.name, gpu, folder)
    original = _recorded(f"rwkv-cuda-{operation}", gpu, folder)
    shape = ladder_record.rows[0].shape if ladder_record else entry.shapes[0]

    def rows(method, *records):
        return {
            dtype: next(filter(None, (_row(x, method, shape, dtype) for x in records)), None)
            for dtype in ladder.dtypes
        }

    rungs = [
        LadderStep(
            rung.label,
            rung.stem,
            rows(rung.method, ladder_record),
            _original(original, rung.original),
        )
        for rung in ladder.rungs
    ]
    if ladder.beside:
        label, method = ladder.beside
        rungs.insert(
            1, LadderStep(label, None, rows(method, ladder_record, library), always_shown=True)
        )
    return [*rungs, LadderStep(FINISHED_LABEL, None, rows(ladder.finished, ladder_record, library))]


def table(climbed, here=None):
    """The steps as text, in columns; `here` is a lesson, marked with an arrow."""
    dtypes = list(climbed[0].rows)
    of_c = ["CUDA C ms"] if dtypes == ["float32"] else []  # the originals take nothing else
    head = ["ms", "faster ×", *of_c, "registers", "local B"]
    if len(dtypes) > 1:
        head = [text for dtype in dtypes for text in (f"{dtype} ms", "faster ×")]
    wide = max(len(step.label) for step in climbed) + 1
    lines = ["   " + _line(wide, "", *head)]
    for step in climbed:
        cells = []
        for dtype in dtypes:
            ms, faster = step.ms_in(dtype), faster_than_first(climbed, step, dtype)
            cells += [_text(ms, ".2f"), _text(faster, ".1f")]
        if len(dtypes) == 1:
            row = step.row
            cells += [_text(step.original_ms, ".2f")] if of_c else []
            cells += [_text(row and row.registers), _text(row and row.local_bytes)]
        cells = ["?"] * len(cells) if step.hidden else cells
        arrow = "→" if here and step.lesson == here else " "
        lines.append(f"{arrow}  " + _line(wide, step.label, *cells))
    return "\n".join(line.rstrip() for line in lines)


def faster_than_first(climbed, step, dtype):
    """How many times faster a step is than the first, or than that in float32; None: no times."""
    first, ms = climbed[0].ms_in(dtype) or climbed[0].ms, step.ms_in(dtype)
    return first / ms if first and ms else None


def source(operation="wkv5", gpu=GPU, folder=None):
    """What was measured, where and when, in two lines."""
    ladder_record = _recorded(f"{operation}-ladder", gpu, folder)
    original = _recorded(f"rwkv-cuda-{operation}", gpu, folder)
    ladder, entry = LADDERS[operation], operation_of(operation)
    if ladder_record is None:
        lines = [f"Ours: not recorded on an {gpu} yet"]
    else:
        where, sizes = ladder_record.provenance, entry.sizes(ladder_record.rows[0].shape)
        dtype = f"{ladder.dtypes[0]}, " if len(ladder.dtypes) == 1 else ""
        timed = f"{entry.timed}, {dtype}{sizes}"
        lines = [f"{timed}: {where.gpu}, {where.date}, commit {where.commit}"]
    if len(ladder.dtypes) > 1:
        lines.append(f"–: takes float32 only, or not recorded; ×: {ladder.rungs[0].label} is 1")
    if original is not None:
        where = original.provenance
        lines.append(f"CUDA C: RWKV-CUDA's kernels on an {where.gpu}, {where.date}")
    return "\n".join(lines)


def draw(axes, climbed, here=None, floors=None, timed="Forward"):
    """Bars of device time, the shorter the better; a black mark where the CUDA C original is.

    Args:
        floors: dtype → milliseconds that nothing is faster than, and what sets them.
        timed: was timed.
    """
    from warplens.pictures.style import INK, PAPER

    dtypes = list(climbed[0].rows)
    no_line = {"bbox": {"fc": PAPER, "ec": "none", "pad": 0.5}}  # of the roofline, through it
    for y, step in enumerate(climbed):
        marked = here is not None and step.lesson == here
        weight = "bold" if marked else "normal"
        place = {"textcoords": "offset points", "va": "center", "fontweight": weight} | no_line
        if step.hidden:
            axes.annotate("?", (0, y), (5, 0), **place)
            continue
        for n, dtype in enumerate(dtypes):
            at = y + (n - (len(dtypes) - 1) / 2) * 0.4
            ms = step.ms_in(dtype)
            if ms:
                axes.barh(at, ms, height=0.62 if len(dtypes) == 1 else 0.38, **_look(n, marked))
            end = max(filter(None, (ms, step.original_ms)), default=0)
            axes.annotate(_times(step, dtype), (end, at), (5, 0), **place)
        if step.original_ms:
            axes.plot([step.original_ms] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=2)
    if any(step.original_ms for step in climbed):
        axes.plot([], [], color=INK, linewidth=2, label="C: the original in CUDA C")
    if len(dtypes) > 1:
        for n, dtype in enumerate(dtypes):
            axes.plot([], [], "s", **_look(n, False), label=dtype)
    for n, (dtype, (ms, limit)) in enumerate((floors or {}).items()):
        kind = f"{dtype}, " if len(dtypes) > 1 else ""
        label = f"least time, {kind}{limit}: {ms:.2f} ms"
        axes.axvline(ms, color=INK, linewidth=1, linestyle=(":", "--")[n], label=label)
    axes.set_yticks(range(len(climbed)), [step.label for step in climbed])
    for tick, step in zip(axes.get_yticklabels(), climbed, strict=True):
        tick.set_fontweight("bold" if here is not None and step.lesson == here else "normal")
    axes.set_ylim(len(climbed) - 0.4, -0.6)  # the ladder is read downwards, as the lessons are
    axes.set_xlim(0, 1.3 * max(axes.get_xlim()[1], 1e-3))  # room for the numbers
    axes.set_xlabel(f"{timed.lower()} pass, ms on the device")
    if axes.get_legend_handles_labels()[0]:  # above the bars, where it covers none
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def _look(n, marked):
    """Of a bar: `marked`, of the lesson that shows it; the second dtype is pale."""
    from warplens.pictures.style import OKABE_ITO

    colour = OKABE_ITO["vermillion" if marked else "sky blue"]
    return {"color": colour, "alpha": 0.4 if n else 1}


def floor(operation="wkv5", gpu=GPU, folder=None, dtype="float32"):
    """The least milliseconds at the GPU's measured ceilings, and what sets them; None: no record.

    Arithmetic counts at the rate of the unit that the ladder's finished kernel computes with.
    """
    from rwkv_lessons.operations import work
    from rwkv_lessons.records.rates import both_seconds, flops_per_second

    ladder_record, limits = (_recorded(x, gpu, folder) for x in (f"{operation}-ladder", "ceilings"))
    if ladder_record is None or limits is None:
        return None
    unit = operation_of(operation).unit_of(LADDERS[operation].finished)
    least, limits = work(operation, ladder_record.rows[0].shape, dtype), limits.ceilings
    flops_per_s = flops_per_second(limits, dtype, unit)
    memory, arithmetic = both_seconds(least, limits["copy_bytes_per_s"], flops_per_s)
    return 1e3 * max(memory, arithmetic), "memory" if memory > arithmetic else unit_text(
        dtype, unit
    )


def unit_text(dtype, unit):
    """What does the arithmetic, in the words of a picture."""
    if unit == MULTIPLY_ADDS:
        return "float32 units"
    return "tensor cores, 3 × TF32" if dtype == "float32" else "tensor cores"


def figure(operation="wkv5", here=None, gpu=GPU, folder=None, measured=True):
    """The picture of `draw` as a Figure in the house style; without `here`, all of it."""
    from warplens.pictures import style

    climbed = steps(operation, gpu, folder)
    climbed = reached(climbed, here, measured) if here else climbed
    floors = {x: floor(operation, gpu, folder, x) for x in LADDERS[operation].dtypes}
    floors = {dtype: least for dtype, least in floors.items() if least}
    drawn = style.figure(HEIGHT, WIDTH)
    draw(drawn.subplots(), climbed, here, floors, operation_of(operation).timed)
    return drawn


def reached(climbed, here, measured):
    """The steps with every one hidden that a reader of lesson `here` has not measured yet.

    The finished kernel is reached with the last rung.
    """
    last = max(step.lesson for step in climbed if step.lesson)

    def hidden(step):
        lesson = step.lesson or last
        if step.always_shown:
            return False
        return lesson > here or (lesson == here and not measured)

    return [replace(step, hidden=hidden(step)) for step in climbed]


def ladder(here, operation="wkv5", measured=False):
    """Prints the ladder's table; returns its picture, for a cell to end with, if it is recorded.

    A question mark stands for every rung above, so that no prediction is spoiled.

    Args:
        here: the stem of a lesson, "05_float4". Its rung is marked in both, if it has one.
        operation: a key of `LADDERS`.
        measured: whether that lesson's own rung is shown, too.

    Raises:
        ValueError: `here` is no lesson, or there is no such ladder.
    """
    from rwkv_lessons.lab.course.exercises import stems
    from warplens.pictures.style import Picture

    if here not in stems():
        raise ValueError(f"here is {here!r}, needs one of {', '.join(stems())}")
    if operation not in LADDERS:
        raise ValueError(f"operation is {operation!r}, needs one of {', '.join(LADDERS)}")
    climbed = reached(steps(operation), here, measured)
    print(table(climbed, here), source(operation), sep="\n\n")
    if not is_recorded(operation):
        return None
    shown = sum(any(step.ms_in(dtype) for dtype in step.rows) for step in climbed)
    text = f"The ladder of {operation} in lesson {here}: {shown} of {len(climbed)} steps shown"
    return Picture(figure(operation, here, measured=measured), text)


def against_c(original, kernel, *before, operation="wkv5"):
    """Prints the registers of the CUDA C `original` beside those of `kernel`, and its early loads.

    Args:
        original: its name in RWKV-CUDA, "v1a".
        kernel: ours.
        before: instructions: the loads that are started ahead of the first of these are counted.
    """
    from warplens.compiled.assembly import assembly, what_is_missing

    from ..evidence.cuda import WKV5_SIGNATURE

    if missing := what_is_missing():
        print(f"No machine code here: {missing}")
        return
    original_row = record(f"rwkv-cuda-{operation}").row(original, dtype="float32")
    mine = assembly(kernel, *WKV5_SIGNATURE)
    print(f"CUDA C: {original_row.registers} registers; ours: {mine.registers}, and", end=" ")
    print(f"{mine.started('LDG', *before)} loads before the first {' or '.join(before)}")


def is_recorded(operation, gpu=GPU, folder=None):
    """Whether there are times of its rungs."""
    return _recorded(f"{operation}-ladder", gpu, folder) is not None


def _recorded(name, gpu, folder):
    try:
        return record(name, gpu, folder)
    except LookupError:
        return None


def _row(measured, method, shape, dtype):
    key = method, shape, dtype
    rows = measured.rows if measured else ()
    return next((row for row in rows if (row.method, row.shape, row.dtype) == key), None)


def _original(measured, method):
    rows = measured.rows if measured else ()
    return next((row for row in rows if row.method == method), None)


def _times(step, dtype):
    if not step.ms_in(dtype):
        return "not recorded yet" if len(step.rows) == 1 else "–"
    time = f"{step.ms_in(dtype):.2f} ms"
    return f"{time} (C: {step.original_ms:.2f})" if step.original_ms else time


def _line(wide, label, *cells):
    return f"{label:{max(wide, 23)}}" + "".join(
        f"{cell:>{max(11, len(cell) + 2)}}" for cell in cells
    )


def _text(value, form="d"):
    return "–" if value is None else format(value, form)
