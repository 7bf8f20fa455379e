"""Time against decay: what WKV-6 takes where nothing is forgotten, where all is, and in between."""

import math

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....operations import operation_of, work
from ....records.lookup import GPU, record
from ....records.rates import floor_seconds

NAME = "wkv6-decays"
# Case of the record → -w of its tokens and channels, the median where they differ.
EVEN = {"w = 0": 0, "tame": math.exp(-1.5), "median exp(-2)": 2, "w = -5": 5, "w = -20": 20}
SHOWN = {"tame": "mild"}  # otherwise as in the record
# Mild, but there → what the picture says.
MIXED = {
    "one channel in 64 at -5": "1 channel in 64 at −5",
    "40 tokens of -4": "40 tokens of −4",
}
# -w → where the number of a point stands, if not above it: away from the words for mixed cases, and
# from the line at `FITS`.
BESIDE = {0: ((-2, 6), "right"), EVEN["tame"]: ((7, -4), "left"), 2: ((-2, 6), "right")}
PASSES = {"forward": "", "both passes": ", both passes"}
WORK = {"forward": "wkv6", "both passes": "wkv6-backward"}  # whose fewest bytes and flops
FITS = 200 * math.log(2) / 64  # a mean -w over 64 tokens that leaves 2^-200
AT_FIRST = (math.exp(-6), math.exp(-1))  # -w of the channels of an untrained RWKV-6
CLAMPED = (-math.log(0.02), -math.log(0.005))  # -w beyond which public chunked code does not go
PEERS = "fla chunk"


def time_against_decay(gpu=GPU, folder=None):
    """Device time of both kinds of calls, case by case, from the record `wkv6-decays`.

    Another library's times stand beside them where its record has some.

    Raises:
        LookupError: the cases are not recorded.
    """
    measured = record(NAME, gpu, folder)
    by_case = {row.method.removeprefix("wkv6, "): row for row in measured.rows if row.median_ms}
    peers = _peers(gpu, folder)
    figure = style.figure(3.7, 9)
    lines = []
    for ax, (kind, suffix) in zip(figure.subplots(1, 2), PASSES.items(), strict=True):
        times = {
            case: by_case[case + suffix].median_ms for case in EVEN if case + suffix in by_case
        }
        mixed = {
            case: by_case[case + suffix].median_ms for case in MIXED if case + suffix in by_case
        }
        peer_ms = {case: peers[case + suffix] for case in EVEN if case + suffix in peers}
        floor = _floor(kind, measured.rows[0], gpu, folder)
        top = 1.25 * max([*times.values(), *mixed.values(), *peer_ms.values()])
        _ground(ax, 0.45 * top if peer_ms else 0.02 * top)
        if peer_ms:
            _line(ax, peer_ms, {}, color=style.STORE, label="FLA's chunked kernel")
        _line(ax, times, BESIDE, color=style.LOAD, label="similar everywhere")
        _points(ax, mixed, top, times.get("tame", 0))
        if floor:
            ax.axhline(floor, color=style.INK, linewidth=1, linestyle=":", label="roofline")
        ax.set(title=kind, ylabel="ms on the device", ylim=(0, top))
        lines.append(f"{kind}: {_case_times(times | mixed)}")
        if peer_ms:
            lines.append(f"{kind}, FLA's chunked kernel: {_case_times(peer_ms)}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, fontsize=8)
    return Picture(figure, "\n".join(lines))


def _case_times(times):
    return ", ".join(f"{SHOWN.get(case, case)} {ms:.2f} ms" for case, ms in times.items())


def is_recorded(gpu=GPU, folder=None):
    """Whether there are times by decay."""
    try:
        return bool(record(NAME, gpu, folder).rows)
    except LookupError:
        return False


def _peers(gpu, folder):
    try:
        rows = record(f"{NAME}-peers", gpu, folder).rows
    except LookupError:
        return {}
    prefix = f"{PEERS}, "
    return {
        row.method.removeprefix(prefix): row.median_ms
        for row in rows
        if row.median_ms and row.method.startswith(prefix)
    }


def _floor(kind, row, gpu, folder):
    """ms that nothing is faster than; None without the GPU's ceilings."""
    try:
        ceilings = record("ceilings", gpu, folder).ceilings
    except LookupError:
        return None
    unit = operation_of("wkv6").unit_of("chunked")
    return 1e3 * floor_seconds(work(WORK[kind], row.shape, row.dtype), row.dtype, ceilings, unit)


def _ground(ax, said_at):
    """The axis of decays, and what is known of models and of other kernels on it.

    said_at: ms, where its words stand; above our points where another library's are far above.
    """
    ax.set_xscale("symlog", linthresh=0.01, linscale=0.9)
    ticks = {0: "0", 0.01: "0.01", 0.1: "0.1", 1: "1", 5: "5", 20: "20"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xticks([], minor=True)
    ax.set(xlim=(-0.004, 30), xlabel="−w a token; it leaves exp(w) of the state")
    for low, high in (AT_FIRST, CLAMPED):
        ax.axvspan(low, high, color=style.FAINT, zorder=0, linewidth=0)
    ax.axvline(FITS, color=style.INK, linewidth=0.8, linestyle="--")
    for x, text, side in (
        (math.sqrt(AT_FIRST[0] * AT_FIRST[1]), "untrained RWKV-6", "center"),
        (FITS * 0.93, "64 tokens\nleave 2⁻²⁰⁰", "right"),
        (CLAMPED[1] * 1.1, "public\ncode\nclamps", "left"),
    ):
        ax.text(x, said_at, text, ha=side, va="bottom", size=7.5)


def _line(ax, times, beside, **look):
    """Measured points; what is between them was not measured, and is pale."""
    x, ms = [EVEN[case] for case in times], list(times.values())
    ax.plot(x, ms, color=look["color"], alpha=0.35, linewidth=1)
    ax.plot(x, ms, "o", **look)
    for at, value in zip(x, ms, strict=True):
        offset, side = beside.get(at, ((0, 6), "center"))
        ax.annotate(f"{value:.2f}", (at, value), offset, ha=side, size=8,
                    textcoords="offset points")  # fmt: skip


def _points(ax, times, top, below):
    """Cases of two decays, over the decay that most of their numbers have.

    below: ms of that decay everywhere; the words stand over its line.
    """
    x, free, label = EVEN["tame"], below + 0.06 * top, "mild, with a few that are stronger"
    for case, ms in sorted(times.items(), key=lambda item: item[1]):
        ax.plot(x, ms, "D", color=style.OKABE_ITO["orange"], label=label)
        free, label = max(free, ms), None
        ax.annotate(f"{MIXED[case]}: {ms:.2f}", (x, free), (-7, 0), textcoords="offset points",
                    ha="right", va="center", size=8)  # fmt: skip
        free += 0.06 * top  # a line of text
