"""Gradients of WKV-6 against time: pictures, and what the running difference costs in digits."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....inputs import rwkv6_inputs

S_COLOUR, G_COLOUR, A_COLOUR = style.LOAD, style.STORE, style.OKABE_ITO["green"]
BIN = 64  # tokens that share a point of the drift's curve


class Sweeps(NamedTuple):
    """What both sweeps leave behind for dw, of one head."""

    rdr: np.ndarray  # [T, N]
    kdk: np.ndarray
    a: np.ndarray  # [T + 1, N]: Σ S·G before token t, from all states
    dw: np.ndarray  # from all states: nothing is subtracted


@lru_cache
def sweeps(T, dtype=np.float32):
    """Both sweeps over T tokens of the text, computed in `dtype`; random gradients of the outputs.

    Inputs are bfloat16 numbers, and every sum adds in one order: the same on all machines.
    """
    inputs = rwkv6_inputs(1, T, H=4)[:4]
    r, k, v, w = (x[0, :, -1].bfloat16().double().numpy() for x in inputs)  # of the last head
    do = torch.randn(r.shape, generator=torch.Generator().manual_seed(0)).bfloat16().double()
    decay, r, k, v, do = (x.astype(dtype) for x in (np.exp(w), r, k, v, do.numpy()))
    N = r.shape[-1]
    S, G = np.zeros((T + 1, N, N), dtype), np.zeros((N, N), dtype)
    a, (rdr, kdk, dw) = np.zeros((T + 1, N), dtype), (np.empty_like(r) for _ in range(3))
    for t in range(T):
        rdr[t] = r[t] * (S[t] * do[t]).sum(-1)
        S[t + 1] = decay[t, :, None] * S[t] + k[t, :, None] * v[t]
    for t in reversed(range(T)):
        kdk[t] = k[t] * (G * v[t]).sum(-1)
        dw[t] = decay[t] * (S[t] * G).sum(-1)
        G = decay[t, :, None] * G + r[t, :, None] * do[t]
        a[t] = (S[t] * G).sum(-1)
    return Sweeps(rdr, kdk, a, dw)


def running_difference(sums, C):
    """dw `[T, N]` from `Sweeps`, where the sum is taken afresh every C tokens."""
    T, dw = len(sums.rdr), np.empty_like(sums.rdr)
    for t in reversed(range(T)):
        if t == T - 1 or (t + 1) % C == 0:
            a = sums.a[t + 1]
        dw[t] = a - sums.kdk[t]
        a = dw[t] + sums.rdr[t]
    return dw


def dw_errors(T, C=None):
    """How far a float32 dw is off, `[T, N]`, in units of its channel's root mean square.

    Args:
        C: tokens between checkpoints; None takes the sum from all states, at every token.
    """
    exact, sums = sweeps(T, np.float64).dw, sweeps(T)
    dw = sums.dw if C is None else running_difference(sums, C)
    return (dw - exact) / rms(exact, 0)


def rms(x, axis=None):
    """The root of the mean square, over `axis` or all."""
    return np.sqrt(np.mean(np.square(x), axis))


def drift(T=4096, C=64):
    """The error of dw token by token: without checkpoints, with one every C tokens, all states."""
    figure = style.figure(3.2)
    axes = figure.subplots()
    lines = []
    for chunk, colour, label in (
        (T, style.STORE, "one sum for all tokens"),
        (C, A_COLOUR, f"a checkpoint every {C} tokens"),
        (None, style.INK, "all states kept: nothing subtracted"),
    ):
        wrong = dw_errors(T, chunk)
        curve = rms(wrong.reshape(T // BIN, -1), 1)
        axes.semilogy((np.arange(T // BIN) + 0.5) * BIN, curve, color=colour, label=label)
        lines.append(f"{label}: {rms(wrong):.0e}")
    low, high = axes.get_ylim()
    axes.set(xlim=(0, T), ylim=(low, 4 * high), xlabel="token", ylabel="error of dw")
    arrow = {"arrowstyle": "->", "color": style.INK}
    axes.annotate("", (0.3, 0.88), (0.7, 0.88), "axes fraction", arrowprops=arrow)
    axes.text(0.5, 0.91, "the sweep goes this way", transform=axes.transAxes, ha="center")
    figure.legend(loc="outside upper left", ncols=3, fontsize=8)
    return Picture(figure, f"error of dw over {T:,} tokens\n" + "\n".join(lines))


def checkpoints(T=4096, choices=(4, 16, 64, 256, 1024, 4096), N=64):
    """What a checkpoint every C tokens leaves of the error, and what the states take in memory."""
    figure = style.figure(3.2, 8)
    left, right = figure.subplots(1, 2)
    wrong = [rms(dw_errors(T, C)) for C in choices]
    left.loglog(choices, wrong, "o-", color=A_COLOUR)
    left.axhline(rms(dw_errors(T)), color=style.INK, linestyle="--", label="all states kept")
    left.set(ylabel=f"error of dw, {T:,} tokens")
    left.legend()
    right.loglog(choices, [N / C for C in choices], "s-", color=S_COLOUR)
    right.axhline(1, color=style.INK, linestyle="--", label="one of r, k, v, w")
    right.set(ylabel="values stored per token and channel")
    right.legend()
    for axes in (left, right):
        axes.set_xticks(choices, [f"{C:,}" for C in choices])
        axes.minorticks_off()
        axes.set_xlabel("tokens from checkpoint to checkpoint, C")
    lines = [
        f"C = {C:5,}: {x:.0e}, {N / C:g} value{'s' if C != N else ''}"
        for C, x in zip(choices, wrong, strict=True)
    ]
    return Picture(figure, "\n".join(lines))


def two_sweeps(tokens=4):
    """The state runs forward and its gradient backward; where they meet, a token's dw."""
    figure = style.figure(2.6)
    ax = figure.subplots()
    for t in range(tokens):
        style.box(ax, 2 * t + 0.6, 0.72, 0.8, 0.56, style.FAINT)
        ax.text(2 * t + 1, 1, f"token {t}", ha="center", va="center", size=9)
        for y, mine, colour in ((1.6, f"dr, du [{t}]", S_COLOUR), (0.4, f"dk, dv [{t}]", G_COLOUR)):
            ax.text(2 * t + 1, y + (0.32 if y > 1 else -0.4), mine, ha="center", color=colour)
    for t in range(tokens + 1):
        last = t == tokens
        ax.text(2 * t, 1.6, f"S{'₀₁₂₃₄₅₆₇'[t]}", ha="center", va="center", color=S_COLOUR, size=12)
        ax.text(2 * t, 0.4, f"G{'₀₁₂₃₄₅₆₇'[t]}", ha="center", va="center", color=G_COLOUR, size=12)
        ax.text(2 * t, 1, f"A{'₀₁₂₃₄₅₆₇'[t]}", ha="center", va="center", color=A_COLOUR, size=12)
        if not last:
            for y, ends, colour in ((1.6, (0.25, 1.75), S_COLOUR), (0.4, (1.75, 0.25), G_COLOUR)):
                start, end = ((2 * t + x, y) for x in ends)
                arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.6}
                ax.annotate("", end, start, arrowprops=arrow)
    ax.text(-0.3, 1.6, "s0 =", ha="right", va="center", color=S_COLOUR)
    ax.text(2 * tokens + 0.3, 1.6, "= s1", va="center", color=S_COLOUR)
    ax.text(-0.3, 0.4, "ds0 =", ha="right", va="center", color=G_COLOUR)
    ax.text(2 * tokens + 0.3, 0.4, "= ds1", va="center", color=G_COLOUR)
    ax.text(2 * tokens + 0.3, 1, "sums of S·G", va="center", color=A_COLOUR)
    ax.set(xlim=(-1.1, 2 * tokens + 1.5), ylim=(-0.15, 2.1))
    ax.axis("off")
    return Picture(figure, "S runs forward through the tokens, its gradient G backward")


def thread_state(N=8, n=3):
    """What thread n holds of S and of G: rows for sums over values, columns for sums over keys."""
    figure = style.figure(2.9, 9)
    for ax, name, parts in zip(
        figure.subplots(1, 2),
        ("forward sweep: S", "reverse sweep: G"),
        ((("row", "dr", S_COLOUR),), (("row", "dk", G_COLOUR), ("column", "dv", style.ATOMIC))),
        strict=True,
    ):
        for i in range(N):
            for j in range(N):
                style.box(ax, j + 0.04, i + 0.04, 0.92, 0.92, style.FAINT)
        for kind, sums, colour in parts:
            for m in range(N):
                i, j = (n, m) if kind == "row" else (m, n)
                style.box(ax, j + 0.04, i + 0.04, 0.92, 0.92, colour, alpha=0.75)
            x, y = (N + 0.3, n + 0.5) if kind == "row" else (n + 0.5, N + 0.7)
            place = {"va": "center", "ha": "left" if kind == "row" else "center"}
            ax.text(
                x, y, f"→ {sums}[n]" if kind == "row" else f"↓ {sums}[n]", color=colour, **place
            )
        ax.text(-0.3, n + 0.5, "n", ha="right", va="center")
        ax.text(n + 0.5, -0.3, "n" if len(parts) > 1 else "", ha="center", va="center")
        ax.text(-1.2, N / 2, "key i", rotation=90, va="center", ha="center")
        ax.text(N / 2, -1, "value j", ha="center", va="center")
        ax.set(xlim=(-2, N + 3), ylim=(N + 1.3, -1.6), title=name, aspect="equal")
        ax.axis("off")
    return Picture(figure, "thread n: row n of S; row n and column n of G")
