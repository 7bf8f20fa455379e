"""The least time an operation can take on a GPU, and where predictions and measurements lie.

A GPU moves so many bytes a second and computes so many operations a second; which of the two holds
an operation back depends on its operations per byte (Williams, Waterman and Patterson, "Roofline",
Communications of the ACM 52(4), 2009). Bytes and flops come from the operation's own definition
(`work.py`), ceilings from a recorded measurement: neither is typed here.
"""

from dataclasses import dataclass
from math import atan2, degrees, log

from rwkv_lessons.lab.course import progress
from rwkv_lessons.operations import operation_of, work
from rwkv_lessons.operations.entries import DTYPES
from rwkv_lessons.operations.work import TENSOR_CORES, Work
from rwkv_lessons.records import lookup as records
from rwkv_lessons.records.rates import flops_per_second, unit_of
from warplens.least_time import Ceiling, positive, roof_over
from warplens.pictures import style

# Markers tell the kinds apart for eyes that see no colour; the small ones lie on top.
KINDS = {
    "recorded": {"color": style.OKABE_ITO["blue"], "marker": "s", "markersize": 11},
    "yours": {"color": style.OKABE_ITO["vermillion"], "marker": "o", "markersize": 8},
    "predicted": {"color": style.OKABE_ITO["purple"], "marker": "D", "markersize": 8},
}
LABEL_HEIGHT = 0.07  # of the picture: a line of text and some air


@dataclass(frozen=True)
class Dot:
    """One time in the picture. `kind`: "predicted", "yours" or "recorded"."""

    kind: str
    label: str
    work: Work
    ms: float

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, needs one of {', '.join(KINDS)}")
        positive("ms", self.ms)

    @property
    def intensity(self):
        return self.work.flops / self.work.bytes

    @property
    def flops_per_s(self):
        return self.work.flops / (self.ms / 1e3)


def ceiling(dtype="float32", gpu=records.GPU, folder=None, unit=None):
    """The recorded ceiling of a GPU for arithmetic in `dtype`.

    Args:
        dtype: "float32", "float16" or "bfloat16".
        gpu: as the driver calls it.
        folder: where records are, if not in records/data.
        unit: what does the arithmetic, MULTIPLY_ADDS or TENSOR_CORES; by default ordinary
            multiply-adds in float32, tensor cores in the others.

    Raises:
        LookupError: nobody recorded that GPU's ceilings yet.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
    measured = records.record("ceilings", gpu, folder)
    bytes_per_s = measured.ceilings["copy_bytes_per_s"]
    flops_per_s = flops_per_second(measured.ceilings, dtype, unit)
    where, how = measured.provenance, ""
    if unit == TENSOR_CORES and unit_of(dtype) != TENSOR_CORES:
        how = " on tensor cores, three products of TF32 for one"
    source = f"{where.gpu}, {where.date}{how and f', {dtype}{how}'}"
    how = how or " on tensor cores" * (unit_of(dtype) == TENSOR_CORES) or " units"
    return Ceiling(f"{where.gpu}, {dtype}{how}", bytes_per_s, flops_per_s, source)


def under_the_roof(
    method, predicted=None, own_ms=None, operation="wkv5", folder=None, dtype="float32"
):
    """A lesson's roofline: the floor, the recorded time, the prediction and yours in one picture.

    All of it at the shape of the record, so that the dots can be compared. What is not recorded or
    not predicted is left out.

    Args:
        method: of the record of the operation's ladder: "05_float4", "07_shared_memory.shared4".
        predicted: id of a prediction in milliseconds.
        own_ms: time that was measured here.
        folder: where records are, if not in records/data.
        dtype: of the row. The roof is that of the unit which does the method's arithmetic.

    Returns:
        a `Picture`; None, and it says why, where nothing is recorded.
    """
    try:
        row = records.record(f"{operation}-ladder", folder=folder).row(method, dtype=dtype)
        roof = ceiling(dtype, folder=folder, unit=operation_of(operation).unit_of(method))
    except LookupError as missing:
        print(f"No roofline yet: {str(missing).split(';')[0]}")  # not which others there are
        return None
    least = work(operation, row.shape, row.dtype)
    guess = progress.prediction(predicted) if predicted else None
    if guess is not None:
        progress.note_outcome(predicted, row.median_ms, "ms")
    times = [("recorded", "recorded", row.median_ms), ("yours", "yours", own_ms)]
    times.append(("predicted", "your prediction", guess))
    return plot_roofline(roof, [Dot(kind, label, least, ms) for kind, label, ms in times if ms])


def plot_roofline(ceiling, dots):
    """Draws the roof of a GPU and each `Dot` under it, with its time and its share of the roof.

    A dot stands at the operations per byte of its operation's definition. Its height is its speed,
    its distance from the roof is what is left to win; no kernel can be above the roof, a
    prediction can.

    Returns:
        a `Picture`.
    """
    if not dots:
        raise ValueError("dots is empty, needs at least one Dot")
    figure = style.figure(4, 8)
    axes = figure.subplots()
    left, right, low, high = _window(ceiling, dots)
    xs = [left, ceiling.ridge, right]
    axes.loglog(xs, [_roof_at(ceiling, x) for x in xs], color=style.INK, linewidth=2)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.set(xlabel="arithmetic intensity, operations per byte", ylabel="operations per second")
    axes.set_title(ceiling.name)
    for dot in sorted(dots, key=lambda dot: list(KINDS).index(dot.kind)):
        edge = {"linestyle": "", "markeredgecolor": "white"}
        axes.plot(dot.intensity, dot.flops_per_s, **edge, **KINDS[dot.kind])
    _label(axes, ceiling, dots, low, high)
    _name_the_roofs(figure, axes, ceiling, left, right)
    floors = dict.fromkeys(str(roof_over(dot.work, ceiling)) for dot in dots)
    lines = [ceiling.source or ceiling.name, *floors, *(_says(dot, ceiling) for dot in dots)]
    return style.Picture(figure, "\n".join(lines))


def _window(ceiling, dots):
    """Axis limits: the ridge, every dot and every dot's point on the roof, with room around."""
    xs = [dot.intensity for dot in dots] + [ceiling.ridge]
    ys = [dot.flops_per_s for dot in dots] + [_roof_at(ceiling, dot.intensity) for dot in dots]
    ys.append(ceiling.flops_per_s)
    return min(xs) / 4, max(xs) * 8, min(ys) / 3, max(ys) * 3


def _roof_at(ceiling, intensity):
    return min(ceiling.flops_per_s, ceiling.bytes_per_s * intensity)


def _label(axes, ceiling, dots, low, high):
    """One line of text a dot in a column right of the picture, where no text covers another."""
    dots = sorted(dots, key=lambda dot: dot.flops_per_s)
    heights = [log(dot.flops_per_s / low) / log(high / low) for dot in dots]
    for dot, height in zip(dots, _spread(heights, LABEL_HEIGHT), strict=True):
        axes.annotate(
            _says(dot, ceiling),
            (dot.intensity, dot.flops_per_s),
            (1.03, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={"arrowstyle": "-", "color": KINDS[dot.kind]["color"], "linewidth": 0.8}
            | {"relpos": (0, 0.5), "shrinkB": 5},
        )


def _says(dot, ceiling):
    share = dot.flops_per_s / _roof_at(ceiling, dot.intensity)
    digits = 0 if share >= 0.01 else 1
    reached = f"{share:.{digits}%} of the roof" if share <= 1 else f"{share:.1f}× the roof"
    return f"{dot.label}: {_time(dot)} ms, {reached}"


def _time(dot):
    """With two decimals, as in a ladder; short times and predictions with what digits they have."""
    return f"{dot.ms:.2f}" if dot.ms >= 1 and dot.kind != "predicted" else f"{dot.ms:.3g}"


def _spread(heights, least):
    """Rising heights, moved up and then down so that neighbours are `least` apart and below 1."""
    placed = []
    for height in heights:
        placed.append(max(height, placed[-1] + least) if placed else height)
    ceiling = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - least
    return placed


def _name_the_roofs(figure, axes, ceiling, left, right):
    offset = {"textcoords": "offset points"}
    text = f"{ceiling.flops_per_s / 1e12:.3g} T operations per second"
    axes.annotate(text, (right, ceiling.flops_per_s), (0, 5), ha="right", **offset)
    figure.draw_without_rendering()  # the slope on the page is known only once the layout is
    ends = [(x, _roof_at(ceiling, x)) for x in (left, ceiling.ridge)]
    (x0, y0), (x1, y1) = axes.transData.transform(ends)
    middle = axes.transData.inverted().transform(((x0 + x1) / 2, (y0 + y1) / 2))
    turned = {"rotation": degrees(atan2(y1 - y0, x1 - x0)), "rotation_mode": "anchor"}
    text = f"{ceiling.bytes_per_s / 1e12:.3g} TB per second"
    axes.annotate(text, middle, (-3, 5), ha="center", **turned, **offset)
