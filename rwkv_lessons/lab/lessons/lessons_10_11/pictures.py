"""Lessons 10 and 11: the products of a row, how threads share them, and what reading costs."""

import numpy as np

from warplens.cuda.trace import trace
from warplens.pictures import style
from warplens.pictures.style import Picture

from ....operations import LADDERS, work
from ....records.lookup import record
from . import evidence
from .budgets import work_of_threads

SHAPE = (32, 768, 768)  # B, C, T of the original's table
SMS, CLOCK = 132, 1.98e9  # of an H200; its highest clock
# The CUDA C kernels of 2022 were timed on these: records "rwkv-cuda-timex".
ORIGINAL_GPUS = ("NVIDIA H200", "NVIDIA GeForce GTX 1070")


def original_ms(kernel, gpu):
    """Forward milliseconds of the CUDA C original of a rung's kernel; None if it has none.

    Args:
        kernel: its name in solutions/, or "conv1d": torch's, there and then.
        gpu: one of ORIGINAL_GPUS.
    """
    of_rungs = {rung.kernel: rung.original for rung in LADDERS["timex"].rungs}
    method = of_rungs.get(kernel, kernel)
    measured = record("rwkv-cuda-timex", gpu)
    return (
        measured.milliseconds(method) if method in {row.method for row in measured.rows} else None
    )


def triangle(T=12, t=7, outputs=4):
    """Every product of a row as a square, coloured by its distance t - u; some outputs framed."""
    figure = style.figure(3.2)
    axes = figure.subplots()
    distance = np.arange(T)[:, None] - np.arange(T)
    shown = np.ma.masked_where(distance < 0, distance)
    axes.imshow(shown, cmap="viridis_r", vmin=-2, vmax=T + 2, aspect="auto")
    for n in range(T):
        for u in range(n + 1):
            ink = style.INK if n - u < T / 2 else "white"  # on the bright half of the colours
            axes.text(u, n, n - u, ha="center", va="center", size=7, color=ink)
    first = t // outputs * outputs
    axes.axhspan(first - 0.5, first + outputs - 0.5, fill=False, ec=style.INK, linewidth=2)
    axes.set(xlabel="token u", ylabel="output t", xticks=range(T), yticks=range(T))
    products = sum(range(first + 1, first + outputs + 1))
    text = f"{T * (T + 1) // 2} products, {T} distances; "
    text += f"outputs {first} to {first + outputs - 1} have {products} products"
    axes.set_title(text + ". In a square: t - u, the distance whose weight it has")
    return Picture(figure, text)


def thread_loads(**kernels):
    """Reads of shared memory by each thread of a block, a row of bars per kernel.

    Args:
        kernels: name=(kernel, its launch).
    """
    figure = style.figure(0.6 + 1.1 * len(kernels))
    rows = figure.subplots(len(kernels), 1, squeeze=False, sharey=True)[:, 0]
    lines = []
    for axes, (name, (kernel, launch)) in zip(rows, kernels.items(), strict=True):
        reads = work_of_threads(counted(kernel, launch, (8, 1, 128), 128, ("o",)))
        reads = np.trim_zeros(reads, "b")
        axes.bar(range(len(reads)), reads, color=style.LOAD)
        share = reads.mean() / reads.max()
        lines.append(f"{name}: {len(reads)} threads, {share:.0%} busy on average")
        axes.set_title(lines[-1])
    rows[-1].set_xlabel("thread of the block; reads of shared memory")
    return Picture(figure, "\n".join(lines))


def pairs(T=32, threads=(0, 2)):
    """How many tokens each group of four outputs reads, and which two groups a thread has.

    Args:
        T: outputs of the row, a multiple of 8.
        threads: which threads of the block to colour, at most three.
    """
    groups = T // 4
    figure = style.figure(0.7 + 0.26 * groups)
    axes = figure.subplots()
    owner = {g: x for x in threads for g in (x, groups - 1 - x)}
    colours = [style.OKABE_ITO[x] for x in ("blue", "vermillion", "green")]
    for g in range(groups):
        thread = owner.get(g)
        colour = style.FAINT if thread is None else colours[threads.index(thread)]
        axes.barh(g, 4 * g + 4, color=colour, height=0.7)
        label = f"{4 * g + 4} tokens" + ("" if thread is None else f", thread {thread}")
        axes.annotate(label, (4 * g + 4, g), (4, 0), textcoords="offset points", va="center")
    ticks = [f"group {g}: outputs {4 * g} to {4 * g + 3}" for g in range(groups)]
    axes.set_yticks(range(groups), ticks)
    axes.set(xlim=(0, 1.2 * T), ylim=(groups - 0.4, -0.6), xlabel="tokens u that a group reads")
    lines = []
    for x in threads:
        short, long = 4 * x + 4, T - 4 * x
        text = f"thread {x}: groups {x} and {groups - 1 - x}"
        lines.append(f"{text}, {short} + {long} = {short + long} tokens")
    axes.set_title("; ".join(lines))
    return Picture(figure, "\n".join(lines))


def counted(kernel, launch, shape, tile, writes):
    """The trace of one launch of a lesson's kernel, with tiles of `tile`."""
    small = evidence.sizes(kernel, tile)
    grid, block = launch(*shape, tile=tile)
    values = evidence.arrays(kernel, writes, shape)
    return trace(kernel, grid, block, *values.values(), constants=small, local=False)


def wavefronts(trace, products):
    """Wavefronts of L1 or shared memory for 32 products: one for each lane of a warp.

    A request to global memory counts as one wavefront, the fewest it can need.
    """
    return 32 * (trace.requests("global", "load") + trace.shared_wavefronts) / products


def wavefronts_ms(of_32, shape=SHAPE):
    """The least milliseconds of such wavefronts on an H200, one a cycle on each SM."""
    B, C, T = shape
    return 1e3 * of_32 * B * C * T * (T + 1) / 2 / 32 / SMS / CLOCK


def arithmetic_ms(shape=SHAPE, operation="timex"):
    """Milliseconds of the multiply-adds alone, at the rate recorded on an H200."""
    limits = record("ceilings").ceilings
    return 1e3 * work(operation, shape, "float32").flops / limits["fp32_flops_per_s"]


def memory_ms(shape=SHAPE, operation="timex"):
    """Milliseconds of reading every input and writing every output once, at the recorded rate."""
    limits = record("ceilings").ceilings
    return 1e3 * work(operation, shape, "float32").bytes / limits["copy_bytes_per_s"]


def rungs(**kernels):
    """Prints for each kernel what reading costs, counted here, beside its CUDA C original's times.

    Args:
        kernels: name=(kernel, its launch); the name is the kernel's in solutions/.
    """
    head = ("wavefronts for 32", "ms, at least", "C on an H200", "C on a GTX 1070")
    print(f"{'':10}" + "".join(f"{x:>19}" for x in head))
    for name, (kernel, launch) in kernels.items():
        B, T = (8 if name in ("grouped", "balanced") else 1), 256  # whole warps, whole groups
        of_32 = wavefronts(counted(kernel, launch, (B, 1, T), T, ("o",)), B * T * (T + 1) / 2)
        cited = (_ms(original_ms(name, gpu)) for gpu in ORIGINAL_GPUS)
        cells = (f"{of_32:.2f}", f"{wavefronts_ms(of_32):.2f}", *cited)
        print(f"{name:10}" + "".join(f"{x:>19}" for x in cells))
    B, C, T = SHAPE
    print(f"B={B} C={C} T={T}: multiply-adds {arithmetic_ms():.2f} ms, memory {memory_ms():.3f} ms")


def _ms(value):
    return "–" if value is None else f"{value:g} ms"
