"""Pictures of RWKV-7 in chunks: the triangular inverse, its digits, exponents, and least times."""

import math

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....operations import work
from ....records.lookup import record
from ....wkv7.options import CLAMP
from ...evidence.chunks import count
from ...evidence.wkv7_functions import heads, readings, unit_triangular_inverse
from ...pictures.chunks import MADE, OUT, READ, STATE

FORWARD_PRODUCTS = (  # as in chunks.py: scores, then z, o and the state
    (("a", "T", "N", READ), ("bᵀ", "N", "T", READ), ("Aᵃᵇ", "T", "T", MADE)),
    (("a", "T", "N", READ), ("kᵀ", "N", "T", READ), ("Aᵃᵏ", "T", "T", MADE)),
    (("r", "T", "N", READ), ("bᵀ", "N", "T", READ), ("Aʳᵇ", "T", "T", MADE)),
    (("r", "T", "N", READ), ("kᵀ", "N", "T", READ), ("Aʳᵏ", "T", "T", MADE)),
    (("a", "T", "N", READ), ("S", "N", "N", STATE), ("y", "T", "N", MADE)),
    (("Aᵃᵏ", "T", "T", MADE), ("v", "T", "N", READ), ("+ y", "T", "N", MADE)),
    (("(I − Aᵃᵇ)⁻¹", "T", "T", MADE), ("y", "T", "N", MADE), ("z", "T", "N", MADE)),
    (("r", "T", "N", READ), ("S", "N", "N", STATE), ("o", "T", "N", OUT)),
    (("Aʳᵇ", "T", "T", MADE), ("z", "T", "N", MADE), ("+ o", "T", "N", OUT)),
    (("Aʳᵏ", "T", "T", MADE), ("v", "T", "N", READ), ("+ o", "T", "N", OUT)),
    (("bᵀ", "N", "T", READ), ("z", "T", "N", MADE), ("+ S", "N", "N", STATE)),
    (("kᵀ", "N", "T", READ), ("v", "T", "N", READ), ("+ S", "N", "N", STATE)),
)


def levels(C=16):
    """The step that computes each element of the inverse: row by row, and by blocks."""
    figure = style.figure(3.4, 9)
    panels = figure.subplots(1, 2)
    names = ("sky blue", "blue", "green", "orange", "vermillion", "purple")
    colours = [style.OKABE_ITO[name] for name in names]
    for t in range(C):
        for s in range(t + 1):
            shade = 0.25 + 0.7 * t / (C - 1)
            _box(panels[0], s, t, style.LOAD if s < t else style.FAINT, shade)
            level = (t ^ s).bit_length() - 1  # the largest run that separates the two tokens
            _box(panels[1], s, t, colours[level] if s < t else style.FAINT, 0.8)
    steps = int(math.log2(C))
    for ax in panels:
        ax.set(xlim=(0, C), ylim=(C, 0), aspect="equal", xticks=[0, C], yticks=[0, C])
        ax.set(xlabel="token s", ylabel="token t")
    panels[0].set_title(f"row by row: {C - 1} steps, each reads all rows above")
    panels[1].set_title(f"by blocks: {steps} steps, all blocks of a colour at once")
    for level in range(steps):
        label = f"step {level + 1}: {1 << level} × {1 << level}"
        panels[1].plot([], [], "s", color=colours[level], label=label)
    panels[1].legend(loc="upper right", bbox_to_anchor=(1.05, 1), fontsize=8)
    return Picture(figure, f"{C} tokens: {C - 1} steps row by row, {steps} by blocks")


LARGEST = 1e9  # error that is drawn; larger ones, infinite or NaN, are drawn as this one


def inverse_errors(by_doubling, by_blocks, lengths=(4, 8, 16, 32, 64, 128)):
    """Relative errors in float32 of both ways, for keys drawn at random and for keys all alike."""
    figure = style.figure(3.4, 8)
    panels = figure.subplots(1, 2, sharey=True)
    lines = []
    for ax, alike in zip(panels, (False, True), strict=True):
        for name, inverse, look in (("doubling", by_doubling, "o-"), ("blocks", by_blocks, "s-")):
            errors = []
            for C in lengths:
                (A,) = readings(C, alike=alike)
                exact = unit_triangular_inverse(A.double())
                error = (inverse(A) - exact).norm() / exact.norm()
                errors.append(min(float(error.nan_to_num(LARGEST, LARGEST)), LARGEST))
            ax.plot(lengths, errors, look, markersize=5, label=name)
            keys = "all alike" if alike else "at random"
            right = [str(C) for C, error in zip(lengths, errors, strict=True) if error < 1e-5]
            lines.append(
                f"keys {keys}, {name}: off by less than 1e-5 with {', '.join(right)} tokens"
            )
        ax.axhline(1, color=style.INK, linewidth=1)
        ax.set(xscale="log", yscale="log", ylim=(1e-9, 1e11), xlabel="tokens of a chunk")
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [str(n) for n in lengths])
        ax.set_title("keys " + ("all alike" if alike else "drawn at random"))
    panels[0].set_ylabel("error of the inverse, float32")
    panels[0].legend(loc="upper left")
    panels[1].text(lengths[0], 3, "all wrong", size=8)
    panels[1].text(lengths[-1], 2 * LARGEST, "$10^9$ or more", size=8, ha="right", va="bottom")
    return Picture(figure, "\n".join(lines))


def exponents(lengths=(16, 32, 64, 128, 256)):
    """How far the decays of a chunk reach at most with RWKV-7's clamp, as text."""
    lines = [f"{'tokens':>6}{'nats':>8}{'powers of 2':>13}   fits"]
    for C in lengths:
        nats = C * CLAMP
        powers = nats / math.log(2)
        kinds = (("float16", 15), ("bfloat16 and float32", 127))
        fits = [name for name, most in kinds if powers < most] or ["none"]
        lines.append(f"{C:6}{nats:8.1f}{powers:13.1f}   {', '.join(fits)}")
    return "\n".join(lines)


def predictions(chunk, shape=(8, 4096, 64, 64), lengths=(16, 32, 64)):
    """Milliseconds by bytes, by products and by steps for chunks of several lengths, as text.

    Args:
        chunk: (r, w, k, v, a, b, s) → o, s1, one chunk in torch; its products are counted.
    """
    B, T, H, N = shape
    limits = record("ceilings").ceilings
    least = work("wkv7", shape, "bfloat16")
    moving = 1e3 * least.bytes / limits["copy_bytes_per_s"]
    head = f"{'tokens':>6}{'operations a token':>20}{'products':>12}{'bytes':>10}{'chunks':>8}"
    lines = [head]
    for C in lengths:
        counted = count(chunk, *heads(1, C, N, N))
        flops = counted.flops / C
        computing = 1e3 * B * T * H * flops / limits["bf16_flops_per_s"]
        line = f"{C:6}{flops / N**2:13.1f} · N²{computing:12.2f}{moving:10.2f}{T // C:8}"
        lines.append(line)
    gpu = record("ceilings").provenance.gpu
    return "\n".join([*lines, f"ms, bfloat16, at the recorded ceilings of an {gpu}"])


def _box(ax, x, y, colour, alpha):
    from matplotlib.patches import Rectangle

    patch = Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fc=colour, ec="none", alpha=alpha)
    ax.add_patch(patch)
