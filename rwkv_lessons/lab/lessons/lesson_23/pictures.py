"""Pictures of stepping back: what rounding becomes, at which decay, with and without z."""

import math

import torch
from torch.nn.functional import normalize

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....wkv7.options import CLAMP

N = 32  # keys and values of the heads that are drawn
DECAYS = (0.95, 0.8, 0.545, 0.4, 0.3, 0.2)
LEAST = math.exp(-CLAMP)  # of RWKV-7's models


def back_and_forth(decay, steps, dtype=torch.float32, seed=0):
    """Relative errors `[steps]` of states computed from the ones after them, float32 or float64.

    Forward over so many tokens with one decay in all channels; then back from the last state, with
    the z that was kept. The truth is the forward pass in float64.
    """
    generator = torch.Generator().manual_seed(seed)
    k, v, a, b = torch.randn(4, steps, N, generator=generator, dtype=torch.float64)
    a = -normalize(a, dim=-1)
    b = -a * torch.rand(steps, 1, generator=generator, dtype=torch.float64)
    s = torch.randn(N, N, generator=generator, dtype=torch.float64)
    exact, rounded, reads = [s], s.to(dtype), []
    for k_t, v_t, a_t, b_t in zip(k, v, a, b, strict=True):
        z = a_t.to(dtype) @ rounded
        rounded = decay * rounded + torch.outer(b_t.to(dtype), z)
        rounded = rounded + torch.outer(k_t.to(dtype), v_t.to(dtype))
        reads.append(z)
        s = decay * s + torch.outer(b_t, a_t @ s) + torch.outer(k_t, v_t)
        exact.append(s)
    errors = []
    for t in reversed(range(steps)):
        taken_out = torch.outer(b[t].to(dtype), reads[t])
        taken_out = taken_out + torch.outer(k[t].to(dtype), v[t].to(dtype))
        rounded = (rounded - taken_out) / decay
        off = (rounded.double() - exact[t]).norm() / exact[t].norm()
        errors.append(float(off))
    return errors


def errors(decays=DECAYS, steps=64, spans=(4, 8, 16, 32)):
    """The error of a state by the number of steps back, at several decays; the worst of a span."""
    figure = style.figure(3.8)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for n, decay in enumerate(decays):
        error = back_and_forth(decay, steps)
        steps_back = range(1, steps + 1)
        left.plot(steps_back, error, color=f"C{n}", label=f"decay {decay:g}")
        left.plot(steps_back, [2**-24 / decay**t for t in steps_back], ":", color=f"C{n}")
    left.plot([], [], ":", color=style.INK, label="2⁻²⁴ / decayⁿ")
    left.axhline(1, color=style.INK, linewidth=1)
    left.text(0.6, 1.7, "all wrong", size=8)
    left.set(yscale="log", ylim=(1e-8, 2e5), xlim=(0, steps))
    left.set(xlabel="steps back", ylabel="error of the state, float32", title="without checkpoints")
    left.legend(loc="upper right", fontsize=8, labelspacing=0.25)

    rates = torch.linspace(0.1, 0.99, 16).tolist()
    for n, span in enumerate(spans):
        worst = [max(back_and_forth(decay, span)) for decay in rates]
        right.plot(rates, worst, color=f"C{n}", label=f"every {span}")
    right.axvspan(LEAST, 1, color=style.FAINT, zorder=0)
    right.text((1 + LEAST) / 2, 5e4, "RWKV-7", ha="center", size=8)
    right.axhline(1, color=style.INK, linewidth=1)
    right.set(yscale="log", ylim=(1e-8, 2e5), xlim=(0.1, 1), xlabel="decay")
    right.set_title("a state kept every …")
    right.legend(loc="upper right", bbox_to_anchor=(1, 0.94), fontsize=8)
    lines = [f"decay {d:g}: 1e-3 is passed after {_passes(d, steps)}" for d in decays]
    return Picture(figure, "\n".join(lines))


def _passes(decay, steps):
    count = math.ceil(math.log(1e-3 * 2**24) / -math.log(decay))
    return f"{count} steps" if count <= steps else f"more than {steps} steps"


def overwritten(rates=None):
    """The error of one step back, by how much of the old answer the token has taken out."""
    rates = rates or [1 - 10 ** (-n / 2) for n in range(1, 13)]
    figure = style.figure(3.0, 7)
    ax = figure.subplots()
    generator = torch.Generator().manual_seed(0)
    s, kappa = torch.randn(N, N, generator=generator), torch.randn(N, generator=generator)
    kappa = kappa / kappa.norm()
    errors = {"z kept": [], "z from the inverse": []}
    for rate in rates:
        z = -kappa @ s
        after = s + rate * torch.outer(kappa, z)
        again = -kappa @ after / (1 - rate * (kappa @ kappa))
        for name, row in (("z kept", z), ("z from the inverse", again)):
            before = after - rate * torch.outer(kappa, row)
            errors[name].append(float((before - s).norm() / s.norm()))
    remaining = [1 - rate for rate in rates]
    for (name, values), look in zip(errors.items(), ("o-", "s-"), strict=True):
        ax.plot(remaining, [max(x, 1e-9) for x in values], look, markersize=4, label=name)
    ax.set(xscale="log", yscale="log", ylim=(5e-10, 10))
    ax.invert_xaxis()
    ax.set(xlabel="1 − β: what is left of the old answer", ylabel="error of one step back")
    ax.legend(loc="upper left")
    ratio = errors["z from the inverse"][-1] / max(errors["z kept"][-1], 1e-9)
    text = f"1 − β = {remaining[-1]:.0e}: with z kept "
    text += f"more than 1,000 times as exact: {ratio > 1e3}"
    return Picture(figure, text)


def registers(sizes=(64, 128, 256), elements=1024, warps=1):
    """Registers a thread needs for S and its gradient: a thread a value, or a tile of columns."""
    lines = [f"{'heads of':>9}{'a thread a value, all keys':>28}{'tiles':>12}{'registers':>11}"]
    for N in sizes:
        BV = max(1, elements // N)
        lines.append(f"{N:9}{2 * N:28}{f'{N} × {BV}':>12}{2 * elements // (32 * warps):11}")
    return "\n".join(lines)
