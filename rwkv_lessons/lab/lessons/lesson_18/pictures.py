"""What lesson 18 reads and draws: the race's traces, what they come to, and calls along time."""

import json
from pathlib import Path

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....records.lookup import GPU
from ....records.profiles import brief
from ....records.traces import CallTrace, load_traces, read_events, write_chrome

RECORD = "wkv6-race"
COMMAND = "python -m rwkv_lessons.bench race --record"
SHORT = (1, 54, 32, 64)
# The blog post's table, on an A800, float16, B=1 T=54 H=32 N=64: µs of a call, and of its longest
# kernel (of chunk_rwkv6, of both its kernels), https://github.com/BBuf/flash-rwkv, 2024.
A800 = {
    "torch loop": (21_500, 432),
    "cuda": (4_500, 101),
    "recurrent": (5_260, 64),
    "chunked": (5_602, 49),
}
HEAD = ("way", "call", "graph", "longest kernel", "all kernels", "launches", "copies", "idle")
HEAD_A800 = ("A800 call", "its longest kernel")
PARTS = {
    "no kernel runs": style.FAINT,
    "kernels that compute": style.OKABE_ITO["blue"],
    "kernels that copy": style.OKABE_ITO["vermillion"],
}
PAPER = {"bbox": {"fc": style.PAPER, "ec": "none", "pad": 1.5}}


def recorded(gpu=GPU, folder=None) -> list[CallTrace]:
    """The recorded calls of the race; prints where they come from, or that nobody recorded them."""
    try:
        where, traces = load_traces(RECORD, gpu, folder)
    except LookupError:
        print(f"The race is not recorded on an {gpu} yet; {COMMAND} makes the record.")
        return []
    print(f"Recorded: {where.gpu}, torch {where.torch}, {where.date}, commit {where.commit}")
    return traces


def events_of(file):
    """The events in a file that torch.profiler exported, as dicts; see `records.traces`."""
    events = read_events(json.loads(Path(file).read_text(encoding="utf-8")))
    return [event._asdict() for event in events]


def find(traces, method, shape=SHORT, replayed=False):
    """The one of these calls, or None."""
    key = (method, tuple(shape), replayed)
    return next((x for x in traces if (x.method, x.shape, x.replayed) == key), None)


def save_traces(traces, folder="race_traces"):
    """Writes each call as a trace that Perfetto and TensorBoard open; prints how many."""
    for trace in traces:
        kind = "-graph" if trace.replayed else ""
        name = f"{trace.method}{kind}-{trace.shape[1]}".replace(", ", "-").replace(" ", "_")
        write_chrome(trace, Path(folder) / f"{name}.pt.trace.json")
    print(f"{len(traces)} traces in {folder}/")


def rows(traces, shape=SHORT):
    """(head, cells) of a line per way at a shape, microseconds; the A800's where it has them."""
    published = {} if tuple(shape) != SHORT else A800
    methods = dict.fromkeys(x.method for x in traces if x.shape == tuple(shape))
    lines = []
    for method in methods:
        eager, graph = (find(traces, method, shape, x) for x in (False, True))
        published_us = [f"{us:,}" for us in published.get(method, ())] or ["–"] * 2
        lines.append([method, *_cells(eager, graph), *(published_us if published else [])])
    return [*HEAD, *(HEAD_A800 if published else [])], lines


def _cells(eager, graph):
    replay = f"{graph.wall_us:,.0f}" if graph else "–"
    if eager is None:
        return ["–", replay, *["–"] * 5]
    idle = max(0, 1 - eager.device_us / eager.wall_us)
    return [
        *(f"{eager.wall_us:,.0f}", replay),
        *(f"{us:,.1f}" for us in (eager.longest[1], eager.device_us)),
        *(f"{eager.launches:,}", f"{eager.copy_us / eager.device_us:.0%}", f"{idle:.0%}"),
    ]


def table(traces, shape=SHORT):
    """The same as text, in columns."""
    head, lines = rows(traces, shape)
    if not lines:
        return f"Nothing of {shape[1]:,} tokens to show yet."
    wide = [max(len(line[n]) for line in [head, *lines]) for n in range(len(head))]
    text = [
        "  ".join(
            [line[0].ljust(wide[0]), *(x.rjust(n) for x, n in zip(line[1:], wide[1:], strict=True))]
        )
        for line in [head, *lines]
    ]
    return "\n".join(text)


def fastest(traces, shape=SHORT):
    """(method of the least time in kernels, method of the shortest call), graphs and CPU aside."""
    ways = [
        x for x in traces if x.shape == tuple(shape) and not x.replayed and "CPU" not in x.method
    ]
    if not ways:
        return None
    kernel, call = (min(ways, key=lambda x: getattr(x, by)) for by in ("device_us", "wall_us"))
    return kernel.method, call.method


def layouts(T=5, H=3):
    """Where the rows of a head lie in memory, tokens first and heads first; a colour is a head."""
    figure = style.figure(1.9)
    ax = figure.subplots()
    colours = [style.OKABE_ITO[x] for x in ("sky blue", "orange", "green", "yellow", "purple")]
    orders = {
        "tokens first, [B, T, H, N]": [(t, h) for t in range(T) for h in range(H)],
        "heads first, [B, H, T, N]": [(t, h) for h in range(H) for t in range(T)],
    }
    for y, order in enumerate(orders.values()):
        for x, (t, h) in enumerate(order):
            style.box(
                ax, x, -1.3 * y, 1, 0.8, colours[h % len(colours)], edge=style.PAPER, line=1.5
            )
            ax.text(x + 0.5, 0.4 - 1.3 * y, f"t{t} h{h}", ha="center", va="center", size=8)
    ax.set_yticks([0.4, -0.9], orders)
    ax.set(xlim=(0, T * H), ylim=(-1.4, 0.9), xlabel="memory, a row of N numbers each", xticks=[])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    text = f"{T} tokens, {H} heads: a head lies in {T} places, or in one; to change that is a copy"
    ax.set_title(text)
    return Picture(figure, text)


def unprofiled(trace):
    """The events of a call at its own length, as dicts: the profiler stretches what the host does.

    The call takes its wall clock without a profiler. Its kernels, whose durations the profiler does
    not change, stand one after another at its end; when each of them starts was not recorded.
    """
    kernels = [event for event in trace.events if event.cat == "kernel"]
    start = max(0, trace.wall_us - sum(event.dur for event in kernels))
    events = [trace.events[0]._replace(dur=trace.wall_us)]
    for event in kernels:
        events.append(event._replace(ts=start))
        start += event.dur
    return [event._asdict() for event in events]


def timelines(traces, shape=SHORT, replayed=False, until=None):
    """Calls as bars, at the lengths they have without a profiler: fixed costs, then kernels.

    Args:
        replayed: draws replays of graphs.
        until: µs to draw; a call that takes longer is cut there. None: the longest but the loop.
    """
    shown = [x for x in traces if x.shape == tuple(shape) and x.replayed == replayed]
    shown = [x for x in shown if "CPU" not in x.method]
    if not shown:
        return None
    until = until or 1.15 * max(x.wall_us for x in shown if x.launches < 50)
    figure = style.figure(0.8 + 0.42 * len(shown))
    ax = figure.subplots()
    for y, trace in enumerate(shown):
        _bar(ax, -y, trace, until)
    labels = [f"{x.method}{', graph' if x.replayed else ''}" for x in shown]
    ax.set_yticks([0.4 - y for y in range(len(shown))], labels)
    ax.set(xlim=(0, until), ylim=(0.9 - len(shown), 1), xlabel="µs, no profiler attached")
    ax.tick_params(axis="y", length=0)
    for label, colour in PARTS.items():
        ax.bar(0, 0, color=colour, label=label)
    figure.legend(loc="outside upper right", ncols=3)
    lines = [
        f"{label}: {x.wall_us:,.0f} µs, {x.device_us:,.0f} of them in {_count(x.launches)}"
        for label, x in zip(labels, shown, strict=True)
    ]
    return Picture(figure, "\n".join(lines))


def _count(kernels):
    return f"{kernels:,} kernel{'s' * (kernels != 1)}"


def _bar(ax, y, trace, until):
    """A call: what is no kernel, then kernels that compute, then kernels that copy."""
    lengths = trace.wall_us - trace.device_us, trace.device_us - trace.copy_us, trace.copy_us
    start = 0
    for length, colour in zip(lengths, PARTS.values(), strict=True):
        width = min(max(0, length), max(0, until - start))
        style.box(ax, start, y, width, 0.8, colour)
        start += max(0, length)
    if trace.wall_us > until:
        text = f"… {trace.wall_us:,.0f} µs "
        ax.text(until, y + 0.4, text, ha="right", va="center", size=8, **PAPER)


def kernels(trace, most=6):
    """A call's kernels as text: how often each ran, and its time."""
    if trace is None:
        return "not recorded yet"
    by_name = {}
    for event in trace.events:
        if event.cat == "kernel":
            calls, us = by_name.get(event.name, (0, 0))
            by_name[event.name] = calls + 1, us + event.dur
    top = sorted(by_name.items(), key=lambda x: -x[1][1])[:most]
    return "\n".join(f"{us:9,.1f} µs {calls:5} × {brief(name)}" for name, (calls, us) in top)
