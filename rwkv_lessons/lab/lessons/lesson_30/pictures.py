"""Pictures of one sequence on many ranks: waiting, the reach of a state, costs."""

import torch

from rwkv_lessons.distributed.cost import Rates, forward, map_bytes, states_first
from rwkv_lessons.records.lookup import GPU, record
from warplens.pictures import style
from warplens.pictures.style import Picture

MAIN, FIX, WIRE = style.LOAD, style.STORE, style.OKABE_ITO["purple"]
RANKS = (1, 2, 4, 8, 16, 32, 64)
SHAPE = (1, 32768, 64, 64)  # whose recorded time says what a token costs
FROM = (2, 1, 131072, 64, 64)  # GPUs, B, T, H, N: what a record's rates are taken from
H, N, ITEM = 64, 64, 2  # heads, their size, bytes of a bfloat16


def schedule(ranks=4, main=6.0, gather=0.5, correction=1.0):
    """Each rank's time: waiting for the state of the rank before it, or correcting afterwards.

    Args:
        main, gather, correction: lengths of the steps, in any unit.
    """
    figure = style.figure(2.8)
    panels = figure.subplots(1, 2, sharex=True)
    chain = ranks * main + (ranks - 1) * gather
    for p in range(ranks):
        at = p * (main + gather)
        style.box(panels[0], at, p - 0.35, main, 0.7, MAIN, alpha=0.7)
        if p:
            style.box(panels[0], at - gather, p - 0.35, gather, 0.7, WIRE)
        style.box(panels[1], 0, p - 0.35, main, 0.7, MAIN, alpha=0.7)
        style.box(panels[1], main, p - 0.35, gather, 0.7, WIRE)
        if p:
            style.box(panels[1], main + gather, p - 0.35, correction, 0.7, FIX, alpha=0.8)
    whole = main + gather + correction
    panels[0].set_title("each rank waits for the state before its tokens")
    panels[1].set_title("all ranks start from zero, then correct")
    for ax in panels:
        ax.set(xlim=(-0.2, chain + 0.2), ylim=(ranks - 0.4, -0.6), xlabel="time")
        ax.set_yticks(range(ranks), [f"rank {p}" for p in range(ranks)])
        ax.set_xticks([])
    for x, text, colour in (
        (whole + 0.6, "main pass, from zero", MAIN),
        (whole + 0.6, "gather of the maps", WIRE),
        (whole + 0.6, "correction", FIX),
    ):
        n = (MAIN, WIRE, FIX).index(colour)
        panels[1].text(x, n + 0.5, text, color=colour, va="center", size=9)
    return Picture(
        figure,
        f"{ranks} ranks one after the other take {chain:g}, from zero with a correction {whole:g}",
    )


def reaching(w, bits=32):
    """What is left of an entry state, head by head: the largest decay since token 0.

    Args:
        w: log decays `[T, H, N]`.
        bits: decays below 2^-bits do not count.
    """
    before = torch.cat([torch.zeros_like(w[:1]), w[:-1].cumsum(0)])
    log2_left = (before.amax(-1) / torch.log(torch.tensor(2.0))).numpy()
    reach = [int((log2_left[:, h] >= -bits).sum()) for h in range(log2_left.shape[1])]
    figure = style.figure(3.2)
    ax = figure.subplots()
    last = len(reach) - 1
    for h, colour in ((0, MAIN), (last // 2, style.OKABE_ITO["green"]), (last, FIX)):
        shown = log2_left[: reach[h] + 1, h]
        ax.plot(shown, color=colour, label=f"head {h}: {reach[h]:,} tokens")
    ax.axhline(-bits, color=style.INK, linestyle=":", linewidth=1)
    ax.set(xlabel="token of the rank", ylabel="log₂ of what is left")
    ax.set_title("the key that forgets slowest, of the first, a middle and the last head")
    ax.legend()
    texts = [f"head {h} reads the entry state up to token {reach[h]:,}" for h in (0, last // 2)]
    return Picture(figure, "\n".join([*texts, f"head {last} up to token {reach[last]:,}"]))


def assumed_rates(latency, link, folder=None):
    """Rates of an H200: a main pass as recorded, sums and corrections at its recorded bandwidth.

    The states of segments are taken for 3 of the 8 tensors that a main pass moves with them.

    Args:
        latency, link: of a gather, seconds and bytes a second: not recorded here, so assumed.
    """
    ms = record("wkv6-small", GPU, folder).milliseconds("wkv6", SHAPE, "bfloat16")
    main = ms / 1e3 / SHAPE[1]
    memory = record("ceilings", GPU, folder).ceilings["copy_bytes_per_s"]
    of_a_tensor = H * N * ITEM / memory  # seconds for a token of r, w or o
    size = map_bytes(1, H, N, N, 6)
    return Rates(
        main, of_a_tensor, 4 * of_a_tensor, latency, link, memory, size, main * 3 / 8, main * 5 / 8
    )


def costs(rates, reach, tokens=(2**15, 2**17, 2**20)):
    """How many times as fast as one GPU so many are, by the cost model."""
    ways = {
        f"a model's decays: {reach:,} tokens": lambda T, ranks: forward(T, ranks, rates, reach),
        "nothing decays": lambda T, ranks: forward(T, ranks, rates),
        "the state first": lambda T, ranks: states_first(T, ranks, rates),
    }
    figure = style.figure(3.2)
    panels, texts = figure.subplots(1, 3, sharey=True), []
    for ax, (title, way) in zip(panels, ways.items(), strict=True):
        for T in tokens:
            speedups = [way(T, ranks).speedup for ranks in RANKS]
            ax.plot(RANKS, speedups, marker="o", markersize=3, label=f"{T:,} tokens")
            at = "  ".join(f"{n} GPUs {speedups[RANKS.index(n)]:.2f}×" for n in (2, 8, 64))
            texts.append(f"{title}, T = {T:,}: {at}")
        ax.plot(RANKS, RANKS, color=style.FAINT, zorder=0)
        ax.set(xscale="log", yscale="log", xlabel="GPUs", ylim=(0.3, 70))
        ax.set_xticks(RANKS, RANKS)
        ax.set_yticks((0.5, 1, 2, 4, 8, 16, 32, 64), (0.5, 1, 2, 4, 8, 16, 32, 64))
        ax.minorticks_off()
        ax.set_title(title)
    panels[0].set_ylabel("times one GPU")
    panels[0].legend(fontsize=8)  # between the curves and the frame
    return Picture(figure, "\n".join(texts))


STEPS = "states", "main pass", "gather"


def measured(folder=None):
    """Two GPUs beside one, each step of the second rank, as recorded; or that nobody did."""
    try:
        record_of_two = record("sequence-parallel", GPU, folder)
    except LookupError:
        return f"not recorded on two {GPU}s yet"
    heads = "1 GPU", "2 GPUs", "faster ×", *STEPS, "both passes ×"
    lines = [f"two {GPU}s, {record_of_two.provenance.date}; ms"]
    length = None
    for case, shape in dict.fromkeys((_case(row), row.shape) for row in record_of_two.rows):
        ms = _times(record_of_two, case, shape)
        one, two = ms.get("one GPU"), ms.get("two GPUs")
        if not one or not two:
            continue
        if shape[2] != length:
            length = shape[2]
            lines.append(f"{f'{length:,} tokens':30}  " + "  ".join(heads))
        both = [ms.get(f"{which}, both passes") for which in ("one GPU", "two GPUs")]
        values = [
            one,
            two,
            one / two,
            *map(ms.get, STEPS),
            both[0] / both[1] if all(both) else None,
        ]
        cells = (
            f"{'' if value is None else f'{value:.2f}':>{len(head)}}"
            for value, head in zip(values, heads, strict=True)
        )
        lines.append(f"{case:30}  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def checked(folder=None):
    """The cost model beside the record: the steps at one length predict the other lengths."""
    try:
        measured = record("sequence-parallel", GPU, folder)
    except LookupError:
        return f"nothing to compare with: not recorded on two {GPU}s yet"
    lines = [f"rates from {FROM[2]:,} tokens; two GPUs, ms"]
    decays = "", ", nothing decays"
    for case in [f"wkv6{more}" for more in decays]:
        shapes = [row.shape for row in measured.rows if row.method == f"{case}, two GPUs"]
        for shape in shapes:
            recorded = _times(measured, case, shape).get("two GPUs")
            predicted = _predicted(measured, case, shape)
            if recorded and predicted:
                lines.append(f"{case}, {shape[2]:,} tokens: {predicted:.2f} by the model, "
                             f"{recorded:.2f} recorded")  # fmt: skip
    return "\n".join(lines) if lines[1:] else "the record lacks a step: the model has no rates"


def _case(row):
    """ "wkv6, nothing decays" of a row's name, without what was timed."""
    name = row.method.removesuffix(", both passes")
    return name.rpartition(", ")[0]


def _times(measured, case, shape):
    """What was timed → ms, of a case."""
    rows = [row for row in measured.rows if row.shape == shape and _case(row) == case]
    return {row.method.removeprefix(f"{case}, "): row.median_ms for row in rows}


def _predicted(measured, case, shape):
    """Milliseconds of two GPUs by the model; a gather's bytes are part of its latency."""
    ms = _times(measured, case, FROM)
    if not all(ms.get(x) for x in STEPS):
        return None
    states, main = (ms[x] / 1e3 / (FROM[2] / FROM[0]) for x in ("states", "main pass"))
    none, size = float("inf"), map_bytes(1, H, N, N, 6)
    rates = Rates(0.0, 0.0, 0.0, ms["gather"] / 1e3, none, none, size, states, main)
    return 1e3 * states_first(shape[2], 2, rates).total
