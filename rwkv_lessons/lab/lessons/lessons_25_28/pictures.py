"""Latent attention in pictures: the models' sizes, what is kept of a sequence, and who reads it."""

from typing import NamedTuple

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....records.lookup import GPU, record

COLOURS = {
    "k": style.LOAD,
    "v": style.STORE,
    "latent": style.OKABE_ITO["green"],
    "rope": style.OKABE_ITO["orange"],
}


class ModelSizes(NamedTuple):
    """The sizes of one layer's attention, from the models' published configurations."""

    name: str
    H: int  # heads
    K: int  # key size of a head, without rope
    P: int  # rope size
    V: int  # value size of a head
    R: int  # rank of the latent
    rank_q: int  # rank that the query comes from
    width: int

    @property
    def expanded(self):
        """Numbers per token with keys and values for every head."""
        return self.H * (self.K + self.P + self.V)

    @property
    def latent(self):
        """Numbers per token of the latent and the one key with rope."""
        return self.R + self.P


MINICPM3 = ModelSizes("MiniCPM3-4B", 40, 64, 32, 64, 256, 768, 2560)
DEEPSEEK_V3 = ModelSizes("DeepSeek-V3", 128, 128, 64, 128, 512, 1536, 7168)

RUNGS = (  # lesson, what is new, method in the record
    (None, "keys and values for every head", "expanded"),
    ("25_absorb_the_weights", "the latent itself, in torch", "25_absorb_the_weights"),
    ("26_fused_prefill", "no scores in memory", "26_fused_prefill"),
    ("27_split_decode", "one read for all heads, split", "27_split_decode"),
    ("28_inside_a_model", "the finished kernel", "decode"),
)
SHAPE = (64, 4096, 40, 64, 256, 32, 64)  # B, N, H, K, R, P, V: MiniCPM3, 64 sequences


def rungs(here, measured=False, gpu=GPU, folder=None):
    """Prints the steps of the MLA lessons, `here` marked, with recorded times where there are.

    A question mark stands for what a reader of lesson `here` has not measured yet; `measured`: its
    own step has been.
    """
    if here not in [stem for stem, *_ in RUNGS]:
        raise ValueError(f"here is {here!r}, needs one of {', '.join(r[0] for r in RUNGS if r[0])}")
    try:
        ladder = record("mla-ladder", gpu, folder)
    except LookupError:
        ladder = None
    print(f"{'':27} {'':32} µs")
    for stem, new, method in RUNGS:
        name = stem.replace("_", " ") if stem else "as a model is written"
        arrow = "→" if stem == here else " "
        hidden = stem and (stem > here or (stem == here and not measured))
        time = "?" if hidden else _microseconds(ladder, method)
        print(f"{arrow} {name:25} {new:32} {time}")
    B, N, *_ = SHAPE
    where = f"{ladder.provenance.gpu}, {ladder.provenance.date}" if ladder else f"an {gpu}"
    print(
        f"One decoding step of a MiniCPM3 layer, {B} sequences of {N:,} tokens, bfloat16: {where}."
    )
    if ladder is None:
        print("Not recorded yet: that is what – means.")


def _microseconds(measured, method):
    rows = measured.rows if measured else ()
    times = [r.median_ms for r in rows if r.method == method and r.shape == SHAPE]
    return f"{1e3 * times[0]:,.0f}" if times and times[0] else "–"


def cache_sizes(model=MINICPM3, N=64):
    """Numbers that a layer keeps of a sequence: per token, or in one state, as RWKV does.

    Args:
        N: head size of an RWKV of the same width.
    """
    figure = style.figure(3.2, 8)
    ax = figure.subplots()
    tokens = [2**n for n in range(4, 18)]
    state = model.width * N
    lines = {
        f"keys and values of {model.H} heads": (model.expanded, COLOURS["k"]),
        "latent, and a key with rope": (model.latent, COLOURS["latent"]),
    }
    for name, (each, colour) in lines.items():
        ax.plot(tokens, [each * n for n in tokens], color=colour, linewidth=2, label=name)
    ax.axhline(state, color=style.INK, linestyle="--", label="RWKV's state")
    ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="numbers kept per layer")
    ax.legend()
    ax.set_title(f"{model.name}'s width, {model.width:,}")
    text = f"per token {model.expanded:,} or {model.latent:,} numbers; RWKV: {state:,} in all, "
    return Picture(figure, text + f"as much as the latent of {state // model.latent:,} tokens")


def head_reads(model=MINICPM3, drawn=10):
    """Of one token: what each head reads with keys and values made, and with the latent."""
    figure = style.figure(3.4)
    ax = figure.subplots()
    wide = model.K + model.P + model.V
    scale = drawn * wide
    for h in range(drawn):
        left = h * wide
        style.box(ax, left, 2, model.K, 0.6, COLOURS["k"])
        style.box(ax, left + model.K, 2, model.P, 0.6, COLOURS["rope"])
        style.box(ax, left + model.K + model.P, 2, model.V, 0.6, COLOURS["v"])
        for y, x in ((3.2, left + wide / 2), (1.3, left + wide / 2)):
            ax.text(x, y, f"h={h}", ha="center", va="center", size=8)
        ax.plot([left + wide / 2] * 2, [3.1, 2.62], color=style.INK, linewidth=0.8)
    middle = (scale - model.latent) / 2
    style.box(ax, middle, 0, model.R, 0.6, COLOURS["latent"])
    style.box(ax, middle + model.R, 0, model.P, 0.6, COLOURS["rope"])
    for h in range(drawn):
        x = h * wide + wide / 2
        ax.plot([x, middle + model.R / 2], [1.2, 0.62], color=COLOURS["latent"], linewidth=0.8)
        ax.plot(
            [x, middle + model.R + model.P / 2], [1.2, 0.62], color=COLOURS["rope"], linewidth=0.8
        )
    ax.text(scale * 1.01, 2.3, f"… {model.H} heads:\n{model.expanded:,} numbers", va="center")
    ax.text(scale * 1.01, 0.3, f"all heads:\n{model.latent} numbers", va="center")
    for name, colour in {"key": "k", "rope": "rope", "value": "v", "latent": "latent"}.items():
        ax.plot([], [], "s", color=COLOURS[colour], label=name)
    ax.legend(loc="lower left", ncols=4, bbox_to_anchor=(0, -0.12))
    ax.set(xlim=(-5, scale * 1.18), ylim=(-0.5, 3.4))
    ax.set_title(f"{model.name}, one token of the cache: widths as in memory")
    ax.axis("off")
    return Picture(
        figure, f"{model.H} heads read {wide} numbers each; or all the same {model.latent}"
    )


def programs_read(trace, array="latent", names=None):
    """Which tokens each program of a launch reads: one row per program, one column per token.

    Args:
        trace: a `TritonTrace`.
        array: a tensor [B, N, …] of one sequence (B = 1).
        names: {program: its name}; by default its number along each axis of the grid.
    """
    loads = trace.by_program(array, "load")
    counts = {program: grid[0].max(axis=-1) for program, grid in loads.items()}
    N = len(next(iter(counts.values())))
    figure = style.figure(0.9 + 0.22 * (len(counts) + 1), 8)
    ax = figure.subplots()
    for y, (program, row) in enumerate(counts.items()):
        for n, times in enumerate(row):
            style.box(
                ax, n + 0.04, y + 0.06, 0.92, 0.88, COLOURS["latent"] if times else style.FAINT
            )
        name = names[program] if names else str(program)
        ax.text(-0.3, y + 0.5, name, ha="right", va="center", size=8)
    total = sum(counts.values())
    for n, times in enumerate(total):
        ax.text(n + 0.5, len(counts) + 0.6, f"{times}×", ha="center", va="center", size=8)
    ax.text(-0.3, len(counts) + 0.6, "in all", ha="right", va="center", size=8)
    ax.set(xlim=(-0.2 * N, N + 0.2), ylim=(len(counts) + 1.1, -0.2))
    ax.set_title(f"{array}: which program reads which of {N} tokens")
    ax.axis("off")
    often = " to ".join(map(str, sorted({min(total), max(total)})))
    return Picture(figure, f"{len(counts)} programs; a token of {array} is read {often}×")


def recorded(name, of, gpu=GPU, folder=None):
    """Prints a record as tables, sequences × tokens to the right, or that there is none yet.

    Args:
        name: of the record, whose shapes begin B, N, H.
        of: what it measures, for the line under the table.
    """
    try:
        measured = record(name, gpu, folder)
    except LookupError:
        print(f"{of}: not recorded on an {gpu} yet.")
        return
    tables = {}
    for row in measured.rows:
        (B, N, H), rest = row.shape[:3], row.shape[3:]
        table = tables.setdefault((H, row.dtype, rest), {})
        table.setdefault(row.method, {})[f"{B} × {N:,}"] = row.outcome
    for (H, dtype, _), table in tables.items():
        columns = list(dict.fromkeys(shape for cells in table.values() for shape in cells))
        print(f"{f'{H} heads, {dtype}':30}" + "".join(f"{shape:>12}" for shape in columns))
        for method, cells in table.items():
            print(f"  {method:28}" + "".join(f"{cells.get(x, '–'):>12}" for x in columns))
    print(
        f"{of}: {measured.provenance.gpu}, {measured.provenance.date}, {measured.provenance.commit}"
    )
