"""Pictures of a traced Triton kernel: what one program reads or writes, and who else does."""

import numpy as np

from warplens.pictures import style
from warplens.pictures.style import Picture

from ..evidence.wkv6 import LETTERS
from ..evidence.wkv6_triton import PARTS

NAMES = {"t": "token", "i": "key", "j": "value"}
HEIGHT, GAP = 2.6, 0.35  # inches
TALLEST, WIDEST = 3.2, 3.2  # of a panel, against its other side


def program_accesses(trace, *arrays, program=None, op=None, axes=None):
    """A plane of each array: what one program asks for, and what the others do.

    Args:
        trace: a `TritonTrace`.
        arrays: names of contiguous tensors of at least two axes, drawn side by side.
        program: (x, y, z); by default the first.
        op: "load" or "store"; by default all.
        axes: {array: (axis down, axis across)}; by default tokens or keys down, the last across.
            The plane is the one where the program starts.
    """
    program = program or (0, 0, 0)
    if not arrays:
        raise ValueError(f"no array is named; the kernel has {', '.join(trace.tensors)}")
    panels = [_panel(trace, array, program, op, (axes or {}).get(array)) for array in arrays]
    figure = style.figure(HEIGHT + GAP)
    drawn = figure.subplots(1, len(panels), squeeze=False, width_ratios=[_width(p) for p in panels])
    texts = [_draw(ax, *panel) for ax, panel in zip(drawn[0], panels, strict=True)]
    figure.suptitle(
        f"{trace.kernel}: program {program} dark, all {trace.programs:,} light", size=10
    )
    return Picture(figure, f"program {program}: " + "; ".join(texts))


def _panel(trace, array, program, op, axes):
    """What `_draw` draws: counts of this program and of all in the plane, and how to name them."""
    counts = trace.by_program(array, op)
    if program not in counts:
        raise ValueError(f"program is {program!r}, which does not use {array}")
    mine, everyone = counts[program], sum(counts.values())
    down, across = axes or _axes(array, mine.ndim)
    first = np.argwhere(mine)[0]
    place = tuple(
        slice(None) if n in (down % mine.ndim, across % mine.ndim) else int(first[n])
        for n in range(mine.ndim)
    )
    planes = [x[place] if down % x.ndim < across % x.ndim else x[place].T for x in (mine, everyone)]
    ops = {a.op for a in trace.accesses if a.array == array and op in (None, a.op)}
    letters = LETTERS.get(array.removesuffix(PARTS), "")
    letters = "·" * (mine.ndim - len(letters)) + letters
    names = [
        NAMES.get(letters[axis], "") for axis in sorted((down % mine.ndim, across % mine.ndim))
    ]
    return array, *planes, ops, float(everyone.mean()), names


def _axes(array, ndim):
    """Tokens down where there are any; else the last two axes."""
    letters = LETTERS.get(array.removesuffix(PARTS), "")
    if "t" in letters:
        return letters.index("t") - len(letters), -1
    if ndim < 2:
        raise ValueError(f"{array} has one axis, needs at least two")
    return -2, -1


def _width(panel):
    rows, columns = panel[1].shape
    return min(max(columns / rows, 1 / TALLEST), WIDEST)


def _draw(ax, array, mine, everyone, ops, times, names):
    colour = style.STORE if ops == {"store"} else style.LOAD
    faint = 0.28
    image = np.ones((*mine.shape, 3))
    image[everyone > 0] = _mixed(colour, faint)
    image[mine > 0] = _mixed(colour, 1)
    rows, columns = mine.shape
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0, columns, rows, 0))
    for n in range(1, columns):
        ax.axvline(n, color="white", linewidth=0.6)
    for n in range(1, rows):
        ax.axhline(n, color="white", linewidth=0.6)
    verb = "written" if ops == {"store"} else "read" if ops == {"load"} else "used"
    count = int((mine > 0).sum())
    ax.set_title(f"{array}: {verb} {times:.3g}×", loc="left")
    ax.set_xticks([0, columns])
    ax.set_yticks([0, rows])
    ax.set_ylabel(names[0], labelpad=-4)
    ax.set_xlabel(names[1], labelpad=-4)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return f"{array} {count} of {mine.size} elements of its plane, all programs {times:.3g}×"


def loads_in_memory(trace, array, program):
    """An array as it lies in memory, a token's numbers to a line: those that one program loads.

    Args:
        trace: a `TritonTrace`.
        array: a contiguous tensor [B, T, H, …]; a few dozen numbers are enough.
        program: (x, y, z).
    """
    mine = trace.by_program(array, "load")[program]
    heads, lines = mine.shape[2], mine.reshape(mine.shape[0] * mine.shape[1], -1)
    figure = style.figure(0.3 * len(lines) + 0.6)
    axes = figure.subplots()
    image = np.ones((*lines.shape, 3))
    image[:] = _mixed(style.LOAD, 0.15)
    image[lines > 0] = _mixed(style.LOAD, 1)
    down, across = lines.shape
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, across, down, 0))
    for n in range(1, across):
        axes.axvline(n, color="white", linewidth=3 if n % (across // heads) == 0 else 0.6)
    for n in range(1, down):
        axes.axhline(n, color="white", linewidth=1)
    numbers = np.arange(lines.size).reshape(lines.shape)
    for t, x in np.ndindex(lines.shape):
        if lines[t, x] or x == 0:
            ink = "white" if lines[t, x] else style.INK
            axes.text(x + 0.5, t + 0.5, numbers[t, x], ha="center", va="center", color=ink, size=8)
    each = across // heads
    axes.set_xticks([(h + 0.5) * each for h in range(heads)], [f"head {h}" for h in range(heads)])
    axes.set_yticks(
        [t + 0.5 for t in range(down)], [f"t = {t % mine.shape[1]}" for t in range(down)]
    )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.suptitle(f"{array} in memory: what program {program} loads", size=10)
    loaded = [", ".join(map(str, numbers[t][lines[t] > 0])) for t in range(down)]
    return Picture(figure, f"{array}, program {program}: " + "; ".join(x for x in loaded if x))


def _mixed(colour, share):
    from matplotlib.colors import to_rgb

    return 1 - share * (1 - np.array(to_rgb(colour)))
