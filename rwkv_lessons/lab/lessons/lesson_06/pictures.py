"""Lesson 06's pictures: the warp slots of an SM, and the recorded sweep of block sizes."""

from rwkv_lessons.operations import LADDERS
from rwkv_lessons.operations.entries import BLOCKS
from rwkv_lessons.runtime.launch_numba import ceil_div
from warplens.architectures import ARCHITECTURES
from warplens.compiled.occupancy import QUARTERS, WARP, occupancy
from warplens.pictures import style
from warplens.pictures.movable import Drawing, movable
from warplens.pictures.style import Picture

from ....records.lookup import GPU, record

LEGEND = (
    "A square is a warp slot. A number: in use, by that block. "
    "White: free. Grey: no registers left for it."
)
SIDE = 4  # a quarter's 16 warp slots are drawn 4 × 4
ASSUMED_NS = 500  # that a load takes from memory, where nobody measured it
REQUEST = 32 * 16  # bytes: the lanes of a warp, a float4 each
BLOCK_COLOURS = style.LOAD, style.OKABE_ITO["sky blue"]  # neighbouring blocks are told apart


def places(registers, sizes, threads=None, arch="sm_90"):
    """One SM per block size: its 64 warp slots, those that registers allow, those in use.

    Args:
        registers: per thread.
        sizes: threads per block, one picture each.
        threads: of the whole grid: draws the busiest SM. Without it, an SM with all that fits.

    Returns:
        A `Picture`.
    """
    figure = style.figure(3.2)
    axes = figure.subplots(1, max(len(sizes), 4), squeeze=False)[0]  # squares of one size
    for ax in axes[len(sizes) :]:
        ax.axis("off")
    texts = [_sm(*pair, registers, threads, arch) for pair in zip(axes, sizes, strict=False)]
    figure.supxlabel(LEGEND, size=9)
    return Picture(figure, "\n".join(texts))


def sweep(stem="06_block_size", operation="wkv5", gpu=GPU, folder=None):
    """Prints the recorded time of a rung at each block size; returns a `Picture` of it, or None."""
    try:
        measured = record(f"{operation}-ladder", gpu, folder)
    except LookupError:
        print(f"The sweep is not recorded on an {gpu} yet.")
        return None
    swept = next(rung for rung in LADDERS[operation].rungs if rung.stem == stem)
    rows = [
        (n, row) for n in BLOCKS for row in measured.rows if row.method == f"{swept.method}[{n}]"
    ]
    print(_table(rows))
    where = measured.provenance
    print(f"\n{where.gpu}, {where.date}, commit {where.commit}")
    return _bars([(n, row) for n, row in rows if row.median_ms])


def sweep_gain(block, than, stem="06_block_size", operation="wkv5", gpu=GPU, folder=None):
    """How many times faster the rung is in blocks of `block` than of `than`; None if unknown."""
    try:
        measured = record(f"{operation}-ladder", gpu, folder)
        this_ms, other_ms = (measured.milliseconds(f"{stem}[{n}]") for n in (block, than))
    except LookupError:
        return None
    return other_ms / this_ms if this_ms and other_ms else None


def on_their_way(sms=132, gpu=GPU, folder=None):
    """Little's law for the memory of a GPU, as text.

    Args:
        sms: that the GPU has.

    Raises:
        LookupError: nobody recorded that GPU's ceilings.
    """
    limits = record("ceilings", gpu, folder).ceilings
    speed, ns = limits["copy_bytes_per_s"], limits.get("memory_latency_ns")
    latency = f"{ns:.0f} ns, as recorded" if ns else f"{ASSUMED_NS} ns, say (not recorded yet)"
    flying = speed * (ns or ASSUMED_NS) * 1e-9
    return (
        f"{gpu}: {speed / 1e12:.2f} TB/s, as recorded\n"
        f"a request takes {latency}\n"
        f"in flight: {flying / 1e6:.2f} MB, {flying / sms / 1e3:.0f} KB for each of {sms} SMs\n"
        f"that is {flying / sms / REQUEST:.0f} requests of 32 lanes × 16 bytes on each SM"
    )


def sizes_to_try(
    blocks=(32, 64, 128, 256, 512),
    registers=(32, 64, 96, 131, 168, 254),
    batches=(8, 128),
    H=64,
    N=64,
):
    """One SM, with sliders for the block size, the registers per thread and the batch size.

    Returns:
        A `Movable`: the busiest SM of a launch with a thread for each of B·H·N outputs.
    """

    def draw(block, registers, B):
        drawing = Drawing(300, 250)
        slots, text = _slots(block, registers, B * H * N)
        for x, y, owner, usable in slots:
            place = 24 * x + 4, 24 * y + 4, 21, 21
            if owner is None:
                drawing.box(*place, "none" if usable else style.FAINT, edge=style.INK)
            else:
                even = owner % 2 == 0
                drawing.box(*place, BLOCK_COLOURS[owner % 2], owner, "white" if even else style.INK)
        for n, line in enumerate(LEGEND.split(". ", 1)):
            drawing.write(4, 226 + 14 * n, line)
        return drawing, f"blocks of {block}, {registers} registers per thread, B={B}: {text}"

    knobs = {"block": blocks, "registers": registers, "B": batches}
    return movable(knobs, draw, start={"registers": registers[3]})


def _slots(size, registers, threads, arch="sm_90"):
    """(x, y, number of the block in it or None, do registers allow it) of each slot; and in words.

    Warps are given to the quarters in turn, as the hardware does.
    """
    blocks = ceil_div(threads, size) if threads else None
    occupied = occupancy(registers, size, arch=arch, blocks=blocks)
    a_block = ceil_div(size, WARP)
    fit = occupied.warps_per_sm
    used = occupied.busiest_warps if blocks and fit else fit
    room = occupancy(registers, WARP, arch=arch).by["registers"]
    slots = []
    for warp in range(ARCHITECTURES[arch].warps):
        quarter, n = warp % QUARTERS, warp // QUARTERS
        x = quarter % 2 * (SIDE + 0.5) + n % SIDE
        y = quarter // 2 * (SIDE + 0.5) + n // SIDE
        slots.append((x, y, warp // a_block if warp < used else None, warp < room))
    text = f"{used} of the {fit} warps that fit" if blocks else f"{fit} warps fit"
    return slots, text if fit else f"a block needs {a_block} warps: none fits"


def _sm(ax, size, registers, threads, arch):
    from matplotlib.patches import Rectangle

    slots, text = _slots(size, registers, threads, arch)
    for x, y, block, usable in slots:
        colour = "none" if block is None else BLOCK_COLOURS[block % 2]
        colour = colour if usable else style.FAINT
        box = {"fc": colour, "ec": style.INK if usable else "white", "linewidth": 0.7}
        ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, **box))
        if block is not None:
            ink = "white" if block % 2 == 0 else style.INK
            ax.text(x + 0.5, y + 0.53, block, ha="center", va="center", size=7, color=ink)
    ax.set(xlim=(-0.1, 2 * SIDE + 2), ylim=(2 * SIDE + 0.6, -0.1), aspect="equal")
    ax.axis("off")
    ax.set_title(f"blocks of {size}\n{text}", loc="left")
    return f"blocks of {size} threads: {text}"


def _table(rows):
    lines = [f"{'threads':>8}{'registers':>11}{'ms':>9}{'p20 … p80':>18}"]
    for threads, row in rows:
        if row.median_ms is None:
            lines.append(f"{threads:>8}   not timed: {row.problem}")
            continue
        spread = f"{row.p20_ms:.2f} … {row.p80_ms:.2f}"
        lines.append(f"{threads:>8}{row.registers:>11}{row.median_ms:>9.2f}{spread:>18}")
    return "\n".join(lines)


def _bars(timed):
    if not timed:
        return None
    figure = style.figure(0.8 + 0.35 * len(timed))
    ax = figure.subplots()
    for y, (_, row) in enumerate(timed):
        ax.barh(y, row.median_ms, height=0.62, color=style.LOAD)
        ax.text(row.median_ms, y, f"  {row.median_ms:.2f} ms", va="center")
    ax.set_yticks(range(len(timed)), [f"{threads} threads" for threads, _ in timed])
    ax.set_ylim(len(timed) - 0.4, -0.6)
    ax.set_xlim(0, 1.15 * max(row.median_ms for _, row in timed))
    ax.set_xlabel("forward pass, ms on the device")
    fastest, slowest = (f(row.median_ms for _, row in timed) for f in (min, max))
    ax.set_title(f"slowest / fastest: {slowest / fastest:.2f}")
    return Picture(figure, f"slowest / fastest: {slowest / fastest:.2f}")
