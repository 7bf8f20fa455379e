"""What an order of operations costs in latent attention: early or late, expanded or absorbed."""

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....records.lookup import GPU, record
from .pictures import COLOURS, DEEPSEEK_V3, MINICPM3, RUNGS, SHAPE


def value_curves(value_flops, models=(MINICPM3, DEEPSEEK_V3), rows=16, tile=128):
    """What W_V early or late costs one head: over the tokens, and over the rows of a block.

    Args:
        value_flops: (rows, N, R, V) → operations early, late.
        rows: of the block on the left; tile: tokens that a kernel takes at a time.
    """
    figure = style.figure(3.4)
    left, right = figure.subplots(1, 2)
    first = models[0]
    tokens = [tile * n for n in range(1, 33)]
    both = list(zip(*(value_flops(rows, N, first.R, first.V) for N in tokens), strict=True))
    for name, flops, colour in zip(("early", "late"), both, ("v", "latent"), strict=True):
        left.plot(tokens, [f / 1e6 for f in flops], color=COLOURS[colour], label=name, linewidth=2)
    left.set(xlabel="tokens", ylabel="million operations, one head", ylim=(0, None))
    left.set_title(f"{first.name}, {rows} rows")
    left.legend()
    texts = []
    blocks, marked = [8 * n for n in range(1, 33)], (16, 64, 128)
    for model, colour in zip(models, (style.LOAD, style.STORE), strict=False):
        ratio = {m: _ratio(value_flops, m, model) for m in (*blocks, *marked)}
        right.plot(blocks, [ratio[m] for m in blocks], color=colour, label=model.name, linewidth=2)
        texts.append(
            f"{model.name}: " + ", ".join(f"{ratio[m]:.2f}× at {m}" for m in (16, 64, 128))
        )
    for m, place in zip(marked, ((-26, -4), (2, 6), (-12, -15)), strict=True):
        y = _ratio(value_flops, m, first)
        right.plot(m, y, "o", color=style.LOAD)
        right.annotate(f"{y:.2f}", (m, y), place, textcoords="offset points", size=9)
    right.axhline(1, color=style.INK, linewidth=1, linestyle="--")
    right.set(xlabel="rows of a block", ylabel="early / late", xlim=(-16, 264), ylim=(0, 6))
    right.set_xticks(range(0, 257, 32))
    right.set_title("a long sequence")
    right.legend()
    return Picture(figure, "early / late, " + "\n".join(texts))


def _ratio(value_flops, rows, model, N=1 << 30):
    early, late = value_flops(rows, N, model.R, model.V)
    return early / late


def attention_flops(M, N, model):
    """Additions and multiplications of one layer for M queries of a sequence of N tokens.

    Returns:
        expanded: keys and values are made once for all queries; absorbed: never.
    """
    H, K, P, V, R = model.H, model.K, model.P, model.V, model.R
    expanded = 2 * N * R * H * (K + V) + 2 * M * N * H * (K + P + V)
    absorbed = 2 * M * N * H * (2 * R + P) + 2 * M * H * R * (K + V)
    return expanded, absorbed


def prompt_curves(N=16384, models=(MINICPM3, DEEPSEEK_V3)):
    """What one layer computes for M queries of a long sequence, expanded and absorbed."""
    figure = style.figure(3.4)
    texts = []
    for ax, model in zip(figure.subplots(1, 2), models, strict=True):
        rows = [2**n for n in range(14)]
        both = list(zip(*(attention_flops(M, N, model) for M in rows), strict=True))
        for name, flops, colour in zip(
            ("expanded", "absorbed"), both, ("v", "latent"), strict=True
        ):
            ax.plot(rows, [f / 1e9 for f in flops], color=COLOURS[colour], label=name, linewidth=2)
        even = model.R * (model.K + model.V) / (2 * model.R - model.K - model.V)
        ax.axvline(even, color=style.INK, linewidth=1, linestyle="--", label=f"{even:.0f} queries")
        ax.set(xscale="log", yscale="log", xlabel="queries", ylabel="billion operations, one layer")
        ax.set_title(f"{model.name}, a sequence of {N:,} tokens")
        ax.legend()
        few, many = (attention_flops(M, N, model) for M in (1, rows[-1]))
        texts.append(
            f"{model.name}: absorbed {few[0] / few[1]:.0f}× less at 1 query, "
            f"{many[1] / many[0]:.1f}× more at {rows[-1]:,}; even at {even:.0f}"
        )
    return Picture(figure, "\n".join(texts))


def split_costs(tokens_per_split, sequences, model=MINICPM3, BN=64, places=264):
    """Prints, for each (B, N) of `sequences`, what a choice of splits means for one decoding step.

    Args:
        tokens_per_split: (B, tiles, N, BN, places) → tokens; one tile holds all heads.
    """
    print("batch  tokens  per split  splits  programs of 264   parts, beside the latent")
    for B, N in sequences:
        tokens = tokens_per_split(B, 1, N, BN, places)
        splits = -(-N // tokens)
        share = part_bytes(splits, model) / latent_bytes(N, model)
        print(f"{B:5} {N:7,} {tokens:10,} {splits:7} {B * splits:9} {share:22.0%} of its bytes")


def latent_bytes(N, model=MINICPM3):
    """Of one sequence's cache, in two bytes a number."""
    return 2 * N * model.latent


def part_bytes(splits, model=MINICPM3):
    """Written and read again, per sequence: splits × heads × R numbers of four bytes."""
    return 2 * 4 * splits * model.H * model.R


def split_curve(sequences, bandwidth, model=MINICPM3, sms=132):
    """A model of one decoding step over the number of splits: the latent and the parts must move.

    Every SM is taken to move its share of `bandwidth`, bytes a second, and no more.
    """
    figure = style.figure(3.2, 8)
    ax = figure.subplots()
    texts_said = []
    for (B, N), colour in zip(sequences, style.OKABE_ITO.values(), strict=False):
        splits = [s for s in range(1, 257) if B * s <= 4 * sms]
        micro = [_microseconds(B, N, s, bandwidth, model, sms) for s in splits]
        ax.plot(splits, micro, color=colour, linewidth=2, label=f"{B} × {N:,} tokens")
        best = min(zip(micro, splits, strict=True))
        ax.plot(best[1], best[0], "o", color=colour)
        texts_said.append(
            f"{B} × {N:,}: {micro[0]:.1f} µs unsplit, least {best[0]:.1f} at {best[1]}"
        )
    ax.set(xscale="log", yscale="log", xlabel="splits of each sequence", ylabel="µs, by the model")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend()
    return Picture(figure, "\n".join(texts_said))


def _microseconds(B, N, splits, bandwidth, model, sms):
    turns = -(-B * splits // sms)  # an SM's programs, one after another
    latent = turns * latent_bytes(N, model) / splits / (bandwidth / sms)
    return 1e6 * (latent + B * part_bytes(splits, model) / bandwidth)


def roof(shape=SHAPE, dtype="bfloat16", gpu=GPU, folder=None):
    """The roofline over one decoding step, with the least time and the rungs that are recorded."""
    from rwkv_lessons.lab.pictures.roofline import Dot, ceiling, plot_roofline
    from rwkv_lessons.operations import work
    from warplens.least_time import roof_over

    limit, todo = ceiling(dtype, gpu, folder), work("mla-ladder", shape, dtype)
    floor_ms = roof_over(todo, limit).floor_ms * (1 + 1e-9)  # rounding must not lift it above
    dots = [Dot("predicted", "the least", todo, floor_ms)]
    try:
        rows = record("mla-ladder", gpu, folder).rows
    except LookupError:
        rows = ()
    labels = {method: new for _, new, method in RUNGS}
    for row in rows:
        if row.method in labels and (row.shape, row.dtype) == (shape, dtype) and row.median_ms:
            dots.append(Dot("recorded", labels[row.method], todo, row.median_ms))
    return plot_roofline(limit, dots)
