"""What lesson 02 reads and draws: torch's operators, their bytes, and kernels along time."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....records.lookup import GPU
from ....records.profiles import FREE, Profile, brief, load_profiles

NAME = 32  # characters of a kernel's name in a legend
ELEMENTWISE, OTHER = style.OKABE_ITO["orange"], style.OKABE_ITO["blue"]


class Operator(NamedTuple):
    """One call of a torch operator that touches elements; bytes are those of its operands."""

    name: str
    read: int
    written: int


def operators(file):
    """The operators in a Chrome trace of torch.profiler, made with `record_shapes=True`, in order.

    Views and other calls that touch no element are left out.
    """
    events = json.loads(Path(file).read_text())["traceEvents"]
    calls = [event for event in events if event.get("cat") == "cpu_op"]
    calls.sort(key=lambda event: event["ts"])
    named = [(event["name"].removeprefix("aten::"), event["args"]) for event in calls]
    return [_operator(name, args) for name, args in named if name not in FREE]


def _operator(name, args):
    if "Input Dims" not in args:
        raise ValueError("the trace has no shapes: profile with record_shapes=True")
    bytes_of = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}
    operands = [
        (tuple(dims), bytes_of[kind])
        for dims, kind in zip(args["Input Dims"], args["Input type"], strict=True)
        if kind in bytes_of and dims
    ]
    sizes = [math.prod(shape) * itemsize for shape, itemsize in operands]
    if name.endswith("_"):  # in place: the first operand is what it writes
        return Operator(name, sum(sizes[1:]), sizes[0])
    shapes, itemsize = [shape for shape, _ in operands], operands[0][1]
    if name == "bmm":
        out = (*shapes[0][:2], shapes[1][2])
    else:
        out = np.broadcast_shapes(*shapes)
    return Operator(name, sum(sizes), math.prod(out) * itemsize)


def recorded(operation="wkv5", gpu=GPU, folder=None) -> dict[str, Profile]:
    """The recorded profiles of the torch loop by dtype; prints where they come from.

    Empty, with a line that says so, where nobody recorded them yet.
    """
    try:
        where, profiles = load_profiles(f"{operation}-profile", gpu, folder)
    except LookupError:
        print(f"The torch loop's profile is not recorded on an {gpu} yet.")
        return {}
    print(f"Recorded: {where.gpu}, torch {where.torch}, {where.date}, commit {where.commit}")
    return profiles


def traffic(token):
    """The operators of one token, and how much of memory each reads and writes.

    Args:
        token: a list of `Operator`.
    """
    figure = style.figure(0.9 + 0.28 * len(token))
    ax = figure.subplots()
    for y, operator in enumerate(token):
        read, written = operator.read / 1e3, operator.written / 1e3
        kinds = {"color": style.LOAD}, {"color": style.STORE}
        ax.barh(y, read, height=0.66, label="read" if not y else None, **kinds[0])
        ax.barh(y, written, 0.66, left=read, label="written" if not y else None, **kinds[1])
    ax.set_yticks(range(len(token)), [f"{n + 1} {op.name}" for n, op in enumerate(token)])
    ax.set(ylim=(len(token) - 0.5, -0.5), xlabel="kB")
    ax.legend(loc="upper right")
    total = sum(operator.read + operator.written for operator in token)
    text = f"one token: {len(token)} operators read and write {total / 1e3:,.0f} kB"
    ax.set_title(text)
    return Picture(figure, text)


def queue(durations, launch):
    """Kernels along time, as in the exercise `finish`: the host above, the device below.

    Args:
        durations: of the kernels, microseconds.
        launch: microseconds from one launch to the next.
    """
    starts, end = [], 0
    for n, us in enumerate(durations):
        starts.append(max(end, n * launch))
        end = starts[-1] + us
    figure = style.figure(1.6)
    ax = figure.subplots()
    for n, (start, us) in enumerate(zip(starts, durations, strict=True)):
        _labelled(ax, n * launch, 1.2, launch, style.FAINT, str(n))
        _labelled(ax, start, 0, us, OTHER, str(n), "white")
    ax.set_yticks([1.6, 0.4], ["host launches", "device runs"])
    ax.set(xlim=(0, max(end, len(starts) * launch)), ylim=(-0.1, 2.1), xlabel="µs")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    text = f"{len(starts)} kernels end after {end:g} µs; the device is busy {sum(durations):g} µs"
    ax.set_title(text)
    return Picture(figure, text)


def timeline(profile, tokens=3, first=20):
    """The recorded kernels of a few tokens along time; what is white is a device that waits.

    Args:
        profile: a `Profile`, or None: then there is nothing to draw.
        tokens: how many to draw; first: from which on.
    """
    if profile is None:
        return None
    per_token = len(profile.kernels) / profile.tokens
    begin, end = (round(n * per_token) for n in (first, first + tokens))
    kernels = profile.kernels[begin:end]
    origin = kernels[0].start
    figure = style.figure(1.6)
    ax = figure.subplots()
    for kernel in kernels:
        colour = ELEMENTWISE if "elementwise" in kernel.name else OTHER
        _labelled(ax, kernel.start - origin, 0, kernel.us, colour)
    span = kernels[-1].start + kernels[-1].us - origin
    ax.bar(0, 0, color=ELEMENTWISE, label="elementwise")
    ax.bar(0, 0, color=OTHER, label=", ".join(_others(kernels)))
    figure.legend(loc="outside upper right", ncols=2)
    ax.set(xlim=(0, span), ylim=(-0.1, 0.9), yticks=[], xlabel="µs")
    ax.spines["left"].set_visible(False)
    busy = sum(kernel.us for kernel in kernels) / span
    text = f"{len(kernels)} kernels of {tokens} tokens in {span:.0f} µs, running {busy:.0%} of it"
    ax.set_title(text)
    return Picture(figure, text)


def _others(kernels):
    """Names of the kernels that are not elementwise, short enough for a legend."""
    names = dict.fromkeys(brief(k.name) for k in kernels if "elementwise" not in k.name)
    return [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in names]


def _labelled(ax, x, y, width, colour, text="", ink=style.INK):
    style.box(ax, x, y, width, 0.8, colour, edge="white")
    ax.text(x + width / 2, y + 0.4, text, ha="center", va="center", size=7, color=ink)
