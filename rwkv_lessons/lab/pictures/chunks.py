"""Pictures of a chunk: who reads whom, how large the factors get, and what each form can take."""

import math

import numpy as np
import torch

from warplens.pictures import style
from warplens.pictures.style import Picture

from ...inputs import rwkv6_inputs
from ...records.lookup import record
from ...wkv6.reference import wkv6_reference
from ..evidence.chunks import count

LIMIT = 127  # float32 and bfloat16 hold 2^-126 … 2^127
HALF_LIMIT = 15  # float16: 2^-14 … 2^15
THROUGH, LEFT, OWN, SELF = style.LOAD, style.OKABE_ITO["sky blue"], style.STORE, style.INK


def token_pairs(chunks=3, C=8, L=4):
    """Token t in row t, the tokens that it reads in its columns, coloured by the way it does."""
    figure = style.figure(3.9, 8)
    ax = figure.subplots()
    T, ways = chunks * C, {"through the state": 0, "left": 0, "own": 0, "itself": 0}
    for t in range(T):
        for s in range(t + 1):
            if s // C < t // C:
                way, colour = "through the state", THROUGH
            elif s // L < t // L:
                way, colour = "left", LEFT
            else:
                way, colour = ("itself", SELF) if s == t else ("own", OWN)
            ways[way] += 1
            alpha = 0.25 if way == "through the state" else 0.85
            style.box(ax, s + 0.06, t + 0.06, 0.88, 0.88, colour, alpha=alpha)
    for c in range(1, chunks):
        ax.plot([0, c * C], [c * C] * 2, color=style.INK, linewidth=1.2)
        ax.plot([c * C] * 2, [c * C, min((c + 1) * C, T)], color=style.INK, linewidth=1.2)
        text = f"state after token {c * C - 1}"
        ax.text(c * C / 2, c * C + C / 2, text, ha="center", va="center", size=8)
    labels = {
        f"through the state: r @ S, chunks of {C}": (THROUGH, 0.25),
        f"earlier blocks of {L} of its chunk: one product each": (LEFT, 0.85),
        f"its own block of {L}": (OWN, 0.85),
        "itself: the bonus": (SELF, 0.85),
    }
    for label, (colour, alpha) in labels.items():
        ax.plot([], [], "s", color=colour, alpha=alpha, label=label)
    ax.legend(loc="upper left", bbox_to_anchor=(0.75, 1))
    ax.set(xlim=(0, T), ylim=(T, 0), aspect="equal")
    ax.set(xlabel="token s, which is read", ylabel="token t, which reads")
    counts = ", ".join(f"{way} {n}" for way, n in ways.items())
    return Picture(figure, f"{T} tokens: pairs read {counts}")


def factor_exponents(w, L=16):
    """Base-2 exponents of both factors along a chunk, for three ways to choose where to count from.

    Args:
        w: log decay of one channel over a chunk, `[C]`.
        L: tokens of a block, which divides C.
    """
    w = np.asarray(w, np.float64) / math.log(2)
    C = len(w)
    after = w.cumsum()
    before = after - w
    start = np.zeros(C)
    middle = np.full(C, before[C // 2])
    block = before[np.arange(C) // L * L + L // 2]
    figure = style.figure(3)
    lines = []
    titles = ("from the first token", "from the middle", f"from the middle of {L} tokens")
    panels = figure.subplots(1, 3, sharey=True)
    for ax, title, origin in zip(panels, titles, (start, middle, block), strict=True):
        ax.axhspan(-LIMIT, LIMIT, color=style.FAINT, zorder=0)
        for values, colour, label in (
            (before - origin, style.LOAD, "with r: before − start"),
            (origin - after, style.STORE, "with k: start − after"),
        ):
            for i in range(0, C, L) if origin is block else (0,):
                part = slice(i, i + (L if origin is block else C))
                ax.plot(np.arange(C)[part], values[part], color=colour, label=label)
                label = None
        largest = max(np.abs(before - origin).max(), np.abs(origin - after).max())
        lines.append(f"{title}: 2^±{largest:.0f}")
        ax.set(title=lines[-1], xlabel="token of the chunk")
    panels[0].set_ylabel("power of 2")
    panels[2].text(C / 2, LIMIT - 30, "what float32 and bfloat16 hold", ha="center", size=8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, fontsize=8)
    return Picture(figure, "\n".join(lines))


def usable_chunk_lengths(w, lengths=(4, 8, 16, 32, 64, 128)):
    """Which chunk lengths each form can take at a decay, and where the text's channels are.

    A factor is the exp of a sum of log decays: over either half of the tokens where it is counted
    from their middle, over all of them from the first. So it is the mean over these that counts,
    and of the text the largest such mean, over halves of 16 tokens, is shown for each channel.

    Args:
        w: log decay of a text, `[T, channels]`, T a multiple of 8.
    """
    figure = style.figure(3.6, 8)
    ax = figure.subplots()
    rates = np.geomspace(0.0015, 60, 200)
    top = LIMIT * math.log(2)
    for part, limit, label, colour in (
        (0.5, LIMIT, "counted from the middle: C/2 · |w|", style.LOAD),
        (1, LIMIT, "counted from the first token: C · |w|", style.STORE),
        (0.5, HALF_LIMIT, "the middle, in float16", style.OKABE_ITO["green"]),
    ):
        line = {"linestyle": ":"} if limit < LIMIT else {}
        ax.plot(rates, limit * math.log(2) / part / rates, color=colour, label=label, **line)
    ax.fill_between(rates, 2 * top / rates, 256, color=style.FAINT)
    ax.text(25, 100, "pair by pair", ha="center", va="center")
    halves = -np.asarray(w, np.float64).reshape(-1, 8, w.shape[1]).mean(1)
    most = np.sort(halves.max(0))
    low, middle, high = most[0], np.median(most), most[-1]
    ax.plot([low, high], [2.6, 2.6], color=style.INK, linewidth=3, solid_capstyle="butt")
    ax.plot(middle, 2.6, "o", color=style.INK)
    ax.text(high * 1.15, 2.6, "channels of the text", va="center", size=9)
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.set(xlim=(rates[0], rates[-1]), ylim=(2, 256))
    ax.set_yticks(lengths, [str(n) for n in lengths])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="mean |w| over each half of the tokens", ylabel="tokens in the product")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 0.12))
    lines = [
        f"{n} tokens: |w| up to {top / n:.2f} from the first, {2 * top / n:.2f} from the middle"
        for n in (16, 64)
    ]
    lines.append(f"the text's channels, at most over 8 tokens: mean |w| {low:.4f} … {high:.2f}")
    return Picture(figure, "\n".join(lines))


def costs(chunked, pairs, T=256, lengths=(16, 32, 64, 128), N=64, text_tokens=4096):
    """Counts what each chunk length computes, as text; the scan's line is that of its definition.

    Args:
        chunked: (r, k, v, w, u, C, scores) → o, s1, of which T tokens are run and counted.
        pairs: the scores in which every pair of tokens has an exp of its own; once, for C = 64.
        text_tokens: of the text whose dependent steps are given.
    """
    tokens = [x[0].transpose(0, 1) for x in rwkv6_inputs(1, T, 1, N)[:4]]
    u = tokens[0].new_zeros(1, N)
    lines = [f"{'':14}{'steps':>7}{'operations a token':>21}{'exps a token':>15}"]
    lines.append(f"{'scan':14}{text_tokens:7,}{7:15.1f} · N²{1:13.1f} · N")
    for C, scores in (*((C, None) for C in lengths), (64, pairs)):
        counted = count(chunked, *tokens, u, C=C, scores=scores)
        flops, exps = counted.flops / T / N**2, counted.exps / T / N
        name = f"… of {C}, pairs" if scores else f"chunks of {C}"
        products = "" if scores else f"{flops:15.1f} · N²"  # the pairs' sums are no products
        lines.append(f"{name:14}{text_tokens // C:7,}{products:20}{exps:13.1f} · N")
    return "\n".join(lines)


def least_times(shape=(8, 4096, 64, 64)):
    """Milliseconds that 7·N² operations a token take at a GPU's recorded ceilings, as text.

    Raises:
        LookupError: the ceilings are not recorded.
    """
    measured = record("ceilings")
    B, T, H, N = shape
    tokens, limits = B * T * H, measured.ceilings
    ms = {
        "scan, float32 multiply-adds": 7 * N * N / limits["fp32_flops_per_s"],
        "products of bfloat16": (4 * N * N + 4 * 64 * N) / limits["bf16_flops_per_s"],
        "5 bfloat16 tensors moved": 5 * N * 2 / limits["copy_bytes_per_s"],
    }
    lines = [f"{name:30}{1e3 * tokens * seconds:6.2f} ms" for name, seconds in ms.items()]
    return "\n".join([*lines, f"at the speed of an {measured.provenance.gpu}, as recorded"])


def relative_error(chunked, r, k, v, w, u, **more):
    """‖o − exact‖ / ‖exact‖ of a float32 output against the recurrence in float64, as text."""
    o, _ = chunked(r, k, v, w, u, **more)
    inputs = [x.double().transpose(0, 1)[None] for x in (r, k, v, w)]
    want, _ = wkv6_reference(*inputs, u[:, 0].double())
    error = float((o.transpose(0, 1)[None] - want).norm() / want.norm())
    if not math.isfinite(error):
        return "not finite"
    return "< 1e-06" if error < 1e-6 else f"{error:.0e}"


def tf32(x):
    """float32 values as a tensor core reads them: 10 bits after the point, the others truncated."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


READ, STATE, MADE, OUT = style.LOAD, style.OKABE_ITO["green"], style.FAINT, style.STORE
FORWARD_PRODUCTS = (  # the factors, the result: (text, rows, columns, colour)
    (("r eᵇ", "T", "N", READ), ("S", "N", "N", STATE), ("o", "T", "N", OUT)),
    (("r eᵇ⁻ᵐ", "T", "N", READ), ("(k eᵐ⁻ᵃ)ᵀ", "N", "T", READ), ("A", "T", "T", MADE)),
    (("A", "T", "T", MADE), ("v", "T", "N", READ), ("+ o", "T", "N", OUT)),
    (("(k eˡ⁻ᵃ)ᵀ", "N", "T", READ), ("v", "T", "N", READ), ("+ eˡ S", "N", "N", STATE)),
)

BACKWARD_PRODUCTS = (
    (("do", "T", "N", READ), ("Sᵀ", "N", "N", STATE), ("dr", "T", "N", OUT)),
    (("v", "T", "N", READ), ("Gᵀ", "N", "N", STATE), ("dk", "T", "N", OUT)),
    (("k eˡ⁻ᵃ", "T", "N", READ), ("G", "N", "N", STATE), ("dv", "T", "N", OUT)),
    (("(r eᵇ)ᵀ", "N", "T", READ), ("do", "T", "N", READ), ("+ eˡ G", "N", "N", STATE)),
    (("r eᵇ⁻ᵐ", "T", "N", READ), ("(k eᵐ⁻ᵃ)ᵀ", "N", "T", READ), ("A", "T", "T", MADE)),
    (("do", "T", "N", READ), ("vᵀ", "N", "T", READ), ("dA", "T", "T", MADE)),
    (("dA", "T", "T", MADE), ("k eᵐ⁻ᵃ", "T", "N", READ), ("+ dr", "T", "N", OUT)),
    (("dAᵀ", "T", "T", MADE), ("r eᵇ⁻ᵐ", "T", "N", READ), ("+ dk", "T", "N", OUT)),
    (("Aᵀ", "T", "T", MADE), ("do", "T", "N", READ), ("+ dv", "T", "N", OUT)),
)


def products(rows=FORWARD_PRODUCTS, columns=2, BT=16, N=64):
    """The products of a chunk, every tile to scale: what comes from memory, the state, what goes.

    Args:
        rows: (left, right, result) each, as in FORWARD_PRODUCTS; "T" stands for BT tokens.
    """
    size = {"T": BT, "N": N}
    across = -(-len(rows) // columns)
    figure = style.figure(3.8 * across / columns + 0.3, 9)
    ax = figure.subplots()
    for n, row in enumerate(rows):
        x, top = n % columns * 4.6 * N, n // columns * 1.55 * N
        for (text, down, right, colour), sign in zip(row, ("@", "=", ""), strict=True):
            height, width = size[down], size[right]
            style.box(ax, x, top + (N - height) / 2, width, height, colour, alpha=0.75)
            place = {"ha": "center", "size": 9}
            ax.text(x + width / 2, top + (N + height) / 2 + 10, text, va="center", **place)
            ax.text(x + width + 12, top + N / 2, sign, va="center", **place)
            x += width + 24
    for label, colour in (
        (f"read: {BT} tokens × {N} channels", READ),
        ("a state, or its gradient", STATE),
        ("computed and used on the chip", MADE),
        ("written", OUT),
    ):
        ax.plot([], [], "s", color=colour, alpha=0.75, label=label)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8)
    ax.set(xlim=(-5, (4.6 * columns - 0.2) * N), ylim=(across * 1.55 * N, -8), aspect="equal")
    ax.axis("off")
    shapes = (f"{a[0]} @ {b[0]} → {c[0]}" for a, b, c in rows)
    return Picture(figure, "\n".join(shapes))
