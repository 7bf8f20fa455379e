"""Pictures of a trace: memory accesses, which bank serves whom, what happens between barriers.

Each returns a `Picture`, which a notebook shows when it is a cell's last value; its text says the
same in one line. All take a `Trace` and choose a request by any of line, array, op, space and nth.
"""

from collections import defaultdict

from ..cuda.banks import BANKS, WORD, schedule
from ..cuda.fake_cuda import FULL_WARP
from ..cuda.memory_model import SECTOR
from ..wording import many
from . import style
from .style import Picture

MOST_INTERVALS = 9  # columns of a timeline
ROW = 0.2  # inches: the height of one wavefront
GAP = 0.35  # of a sector's width, between sectors that are not neighbours


def sectors(trace, line=None, *, array=None, op=None, nth=0):
    """One warp's addresses as a strip of 32-byte sectors.

    Args:
        trace: what `trace` returned.
        line, array, op: which access to draw; the first that fits all of them.
        nth: which of its requests, counted in the order of execution, from 0.
    """
    figure = style.figure(2.1)
    return Picture(figure, _strip(figure.subplots(), trace, line, array, op, "global", nth))


def banks(trace, line=None, *, array=None, op=None, nth=0):
    """One warp's access to shared memory: 32 banks across, one row for each wavefront.

    The arguments are those of `sectors`.
    """
    request = trace.request(line, array, op, "shared", nth)
    figure = style.figure(1.0 + ROW * max(2, request.wavefronts))
    return Picture(figure, _banks(figure.subplots(), trace, line, array, op, "shared", nth))


def timeline(trace, block=0):
    """What a block does between barriers: a column per interval, a row per array.

    Args:
        block: which of the traced blocks, counted from 0.
    """
    intervals = trace.intervals(block)
    while len(intervals) > 1 and not intervals[-1][0]:
        intervals.pop()  # nothing happens after the last barrier
    rows = list(dict.fromkeys((r.space, r.array) for counts, _ in intervals for r in counts))
    rows = sorted((r for r in rows if r[0] in ("global", "shared")), key=lambda r: r[0])
    figure = style.figure(1.0 + 0.32 * max(1, len(rows)))
    return Picture(figure, _timeline(figure.subplots(), trace, intervals, rows, block))


def side_by_side(previous, mine, line=None, *, array=None, op=None, nth=0, space="global"):
    """The previous rung's request above one's own, on the same scale.

    Args:
        previous, mine: two traces.
        array, op, nth: which request, in both. `line` is a line of `mine`; the previous kernel's
            request is found by the array and the kind of access of that line.
        space: "global" draws as `sectors` does, "shared" as `banks`.
    """
    if space not in ("global", "shared"):
        raise ValueError(f"space is {space!r}; it must be 'global' or 'shared'")
    row = mine.request(line, array, op, space, nth).row
    selections = [
        (t, at, row.array, row.op, space, nth) for t, at in ((previous, None), (mine, row.line))
    ]
    requests = [t.request(*selection) for t, *selection in selections]
    if space == "global":
        figure, ratios = style.figure(4.2), [1, 1]
        scale = min(map(_scale, requests))
    else:
        ratios = [max(2, r.wavefronts) for r in requests]
        figure = style.figure(2.0 + ROW * sum(ratios))
    texts = []
    axes = figure.subplots(2, 1, height_ratios=ratios)
    for ax, selection, name in zip(axes, selections, ("before", "yours"), strict=True):
        text = _strip(ax, *selection, scale=scale) if space == "global" else _banks(ax, *selection)
        ax.set_title(f"{name}: {ax.get_title(loc='left')}", loc="left")
        texts.append(f"{name}: {text}")
    return Picture(figure, "\n".join(texts))


# --- memory accesses -------------------------------------------------------------------------


def _strip(ax, trace, *selection, scale=None):
    """Lanes above, the sectors they touch below, a line between a lane and its bytes."""
    request = trace.request(*selection)
    row, colour = request.row, style.OF_OP[request.row.op]
    active = [(lane, a) for lane, a in enumerate(request.addresses) if a is not None]
    bytes_requested = {a + n for _, a in active for n in range(row.width)}
    left = _lay_out(sorted({byte // SECTOR for byte in bytes_requested}))
    scale = scale or _scale(request)
    word = scale * WORD / SECTOR

    def x(address):
        return scale * (left[address // SECTOR] + address % SECTOR / SECTOR)

    for sector in left:
        style.box(ax, x(sector * SECTOR), 0, scale, 1, style.FAINT)
    for address in {byte // WORD * WORD for byte in bytes_requested}:
        edge = "white" if word >= 0.5 else "none"
        style.box(ax, x(address), 0, word, 1, colour, edge=edge)
    for sector in left:
        style.box(ax, x(sector * SECTOR), 0, scale, 1, "none", edge=style.INK, line=1.0)
        if len(left) <= 16 or sector in (min(left), max(left)):
            ax.text(x(sector * SECTOR), -0.12, f"{sector * SECTOR:,}", va="top", size=7)
    for lane in range(FULL_WARP):
        ink = {style.ATOMIC: style.INK}.get(colour, "white")
        ink, fill = (ink, colour) if (lane in dict(active)) else (style.INK, style.FAINT)
        style.box(ax, lane + 0.08, 3, 0.84, 0.7, fill)
        ax.text(lane + 0.5, 3.33, lane, ha="center", va="center", size=7, color=ink)
    for lane, address in active:
        middle = x(address) + word * row.width / WORD / 2
        ax.plot([lane + 0.5, middle], [3, 1], color=colour, linewidth=0.7, alpha=0.6)
    ax.text(-0.3, 3.35, "lanes", ha="right", va="center", size=8)
    ax.text(-0.3, 0.5, "bytes", ha="right", va="center", size=8)
    text = f"{many(len(active), 'lane')} {_verb(row)} {many(row.width, 'byte')} each: "
    text += f"{many(len(left), 'sector')}, "
    text += f"{len(bytes_requested):,} of {SECTOR * len(left):,} bytes used"
    _title(ax, row, text)
    ax.set(xlim=(-1.7, FULL_WARP + 0.1), ylim=(-0.6, 3.9))
    ax.axis("off")
    return f"line {row.line}, {row.array}: {text}"


def _scale(request):
    """A sector's width in lanes: 8, so that a word is as wide as a lane, or what fits."""
    first, last = ([a for a in request.addresses if a is not None], request.row.width - 1)
    sectors = {a // SECTOR for a in first} | {(a + last) // SECTOR for a in first}
    return min(SECTOR / WORD, FULL_WARP / (max(_lay_out(sorted(sectors)).values()) + 1))


def _lay_out(sectors):
    """Where each sector is drawn: neighbours touch, others keep a gap."""
    left, x = {}, 0.0
    for before, sector in zip([None, *sectors], sectors, strict=False):
        if before is not None:
            x += 1 if sector == before + 1 else 1 + GAP
        left[sector] = x
    return left


# --- banks -----------------------------------------------------------------------------------


def _banks(ax, trace, *selection):
    """A cell per word that a bank serves, in the row of its wavefront."""
    request = trace.request(*selection)
    row = request.row
    active = [(lane, a) for lane, a in enumerate(request.addresses) if a is not None]
    wavefronts = schedule(*zip(*active, strict=True), row.width, row.op)
    for height, (served, extra) in enumerate(wavefronts):
        for bank in range(BANKS):
            style.box(ax, bank, height, 1, 1, "none", edge=style.FAINT, line=0.6)
        for bank, lanes in served.items():
            colour = style.OKABE_ITO["orange"] if extra else style.LOAD
            style.box(ax, bank + 0.04, height + 0.06, 0.92, 0.88, colour)
            name = str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}"
            ink = style.INK if extra else "white"
            ax.text(bank + 0.5, height + 0.53, name, ha="center", va="center", size=7, color=ink)
    conflicts = sum(extra for _, extra in wavefronts)
    text = f"{many(len(active), 'lane')} {_verb(row)} {many(row.width, 'byte')} each: "
    text += many(len(wavefronts), "wavefront")
    text += f", {many(conflicts, 'conflict') if conflicts else 'no conflict'}"
    _title(ax, row, text)
    ax.set(xlim=(0, BANKS), ylim=(len(wavefronts), 0))
    ax.set_xlabel("bank (in a cell: the lane it serves, or how many at once; orange: conflicts)")
    ax.set_ylabel("wavefront")
    ax.set_xticks([n + 0.5 for n in range(0, BANKS, 4)], [str(n) for n in range(0, BANKS, 4)])
    step = 1 if len(wavefronts) <= 8 else 8
    marks = range(0, len(wavefronts), step)
    ax.set_yticks([n + 0.5 for n in marks], [str(n + 1) for n in marks])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return f"line {row.line}, {row.array}: {text}"


# --- timeline --------------------------------------------------------------------------------


def _timeline(ax, trace, intervals, rows, block):
    shown = intervals[:MOST_INTERVALS]
    for n, (requests, barrier) in enumerate(shown):
        counts = defaultdict(dict)
        for row, count in requests.items():
            ops = counts[row.space, row.array]
            ops[row.op] = ops.get(row.op, 0) + count
        for height, name in enumerate(rows):
            for k, (op, count) in enumerate(sorted(counts[name].items())):
                width = 0.9 / len(counts[name])
                left = n + 0.05 + k * width
                style.box(ax, left, height + 0.1, width - 0.02, 0.8, style.OF_OP[op])
                middle = left + width / 2 - 0.01
                ax.text(
                    middle,
                    height + 0.52,
                    f"{op} {count:,}" if len(shown) <= 5 else f"{count:,}",
                    ha="center",
                    va="center",
                    size=7,
                    color="white" if op != "atomic" else style.INK,
                )
        if barrier:
            ax.plot([n + 1] * 2, [0, len(rows)], color=style.INK, linewidth=2, clip_on=False)
            ax.text(n + 1, -0.08, f"barrier, line {barrier.line}", ha="center", size=7)
    barriers = sum(barrier is not None for _, barrier in intervals)
    text = f"{trace.kernel}, block {trace.blocks[block]}: {many(barriers, 'barrier')}, "
    text += f"{many(len(intervals), 'interval')}"
    if len(intervals) > len(shown):
        text += f", the first {len(shown)} drawn"
    handles = [
        ax.bar(0, 0, color=style.OF_OP[op], label=f"{op} requests") for op in ("load", "store")
    ]
    if any(r.op == "atomic" for requests, _ in shown for r in requests):
        handles.append(ax.bar(0, 0, color=style.ATOMIC, label="atomic requests"))
    ax.legend(handles=handles, loc="upper right", bbox_to_anchor=(1, -0.02), ncols=3, fontsize=8)
    ax.set_title(text, pad=14)
    ax.set(xlim=(0, len(shown)), ylim=(max(1, len(rows)), -0.5))
    ax.set_yticks(
        [n + 0.5 for n in range(len(rows))], [f"{name} ({space})" for space, name in rows]
    )
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return text


# --- shared by all ---------------------------------------------------------------------------


def _title(ax, row, text):
    source = row.place.text if len(row.place.text) <= 60 else row.place.text[:59] + "…"
    ax.set_title(f"{row.array}, line {row.line}: {source}\n{text}", loc="left")


def _verb(row):
    return {"load": "read", "store": "write", "atomic": "update"}[row.op]
