"""Pictures of stages, phases and fragments, and a table of waits beside machine code."""

import numpy as np

from warplens.compiled.assembly import assembly, can_compile
from warplens.pictures import style
from warplens.pictures.style import Picture
from warplens.wording import many

from ....records.lookup import record
from ...pictures.chunks import MADE, OUT, READ, STATE
from .evidence import trace


def phases(stage_and_phase, tiles=9, stages=2):
    """Which stage each tile goes through, and which phase of its barrier that is."""
    figure = style.figure(0.6 + 0.45 * stages, 9)
    ax = figure.subplots()
    colours = [style.OKABE_ITO["sky blue"], style.OKABE_ITO["orange"]]
    lines = []
    for t in range(tiles):
        stage, phase = stage_and_phase(t, stages)
        style.box(ax, t - 0.9, stage - 0.4, stages - 0.1, 0.8, colours[phase % 2])
        ax.text(t + stages / 2 - 0.95, stage, f"tile {t} · phase {phase}", ha="center",
                va="center", size=8)  # fmt: skip
        lines.append(f"tile {t}: stage {stage}, phase {phase}")
    ax.set_yticks(range(stages), [f"stage {n}" for n in range(stages)])
    ax.set(xlim=(-1, tiles), ylim=(stages - 0.4, -0.6), xticks=[t + 0.5 for t in range(tiles)])
    ax.set_xticklabels(range(tiles))
    ax.set_xlabel("the tile that is worked on; a stage is filled one round ahead of it")
    return Picture(figure, "\n".join(lines))


def tiles_needed(nanoseconds=(500, 1000, 1500), tile_bytes=64 * 64 * 2, sms=132):
    """How much has to be on its way so that memory is never idle, as text.

    Args:
        nanoseconds: from the start of a copy to its end; assumed, not measured.
    """
    speed = record("ceilings").ceilings["copy_bytes_per_s"] / 2  # read, and as much written
    lines = [f"{'a copy takes':>13}{'bytes on their way':>20}{'an SM':>9}{'tiles an SM':>13}"]
    for ns in nanoseconds:
        flying = speed * ns * 1e-9
        lines.append(
            f"{ns:10} ns{flying / 1e6:17.1f} MB{flying / sms / 1e3:6.0f} KB"
            f"{flying / sms / tile_bytes:13.1f}"
        )
    gpu = record("ceilings").provenance.gpu
    return "\n".join([*lines, f"at the recorded speed of a copy on an {gpu}, {many(sms, 'SM')}"])


def accumulators(holder, warp=1, lane=5):
    """Who holds which element of a product of 64 × 64: its warps, and lanes of 16 rows of one.

    Args:
        holder: (row, column) → warp, lane, register.
        warp, lane: of the thread that is marked.
    """
    from matplotlib.colors import to_rgb

    figure = style.figure(3.9)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
    colours = [style.OKABE_ITO[x] for x in ("sky blue", "orange", "green", "yellow")]
    own, shown = {}, np.zeros((64, 64, 3))
    for i in range(64):
        for j in range(64):
            w, lane_of, register = holder(i, j)
            shown[i, j] = 0.5 + 0.5 * np.array(to_rgb(colours[w]))
            if (w, lane_of) == (warp, lane):
                own[register], shown[i, j] = (i, j), to_rgb(style.INK)
    left.imshow(shown, extent=(0, 64, 64, 0), interpolation="nearest")
    for i in range(16):
        for j in range(16):
            _, lane_of, register = holder(16 * warp + i, j)
            mine = lane_of == lane
            style.box(right, j + 0.04, i + 0.04, 0.92, 0.92, style.INK if mine else colours[warp],
                      alpha=1 if mine else 0.25 + 0.2 * (lane_of % 4))  # fmt: skip
            right.text(j + 0.5, i + 0.53, f"{lane_of}·{register}", ha="center", va="center",
                       size=6, color=style.PAPER if mine else style.INK)  # fmt: skip
    left.set(
        xlim=(0, 64), ylim=(64, 0), aspect="equal", xticks=[0, 32, 64], yticks=range(0, 65, 16)
    )
    left.set(xlabel="column", ylabel="row")
    for w, colour in enumerate(colours):
        left.plot([], [], "s", color=colour, alpha=0.5, label=f"warp {w}")
    left.plot([], [], "s", color=style.INK, label=f"lane {lane} of\nwarp {warp}")
    left.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    left.set_title("who holds an element")
    right.set(xlim=(0, 16), ylim=(16, 0), aspect="equal", xticks=[0, 8, 16], yticks=[])
    right.set_title(f"lane · register in the first 16 columns of warp {warp}")
    text = f"lane {lane} of warp {warp} has {len(own)} elements, the first at "
    return Picture(figure, text + ", ".join(str(own[n]) for n in range(min(4, len(own)))))


PRODUCTS = (  # as in chunks.py: which of the three need no other
    (("r′", "T", "N", READ), ("k′ᵀ", "N", "T", READ), ("scores", "T", "T", MADE)),
    (("r′", "T", "N", READ), ("S′", "N", "N", STATE), ("o", "T", "N", OUT)),
    (("k′ᵀ", "N", "T", READ), ("v", "T", "N", READ), ("+ S′", "N", "N", STATE)),
    (("scores", "T", "T", MADE), ("v", "T", "N", READ), ("+ o", "T", "N", OUT)),
)


def waits_and_code(kernels, launch, chunks):
    """Waits, products and machine code of kernels that compute the same, as text.

    Args:
        kernels: {name: kernel}. launch: a `GluonLaunch` of so many chunks.
    """
    head = ("", "waits", "at once", "HGMMA", "DEPBAR", "instructions", "registers", "B spilled")
    lines = [f"{head[0]:26}" + "".join(f"{x:>{len(x) + 2}}" for x in head[1:])]
    for name, kernel in kernels.items():
        gluon_trace = trace(kernel, launch)
        cells = [gluon_trace.waits("product") // chunks, gluon_trace.most("product")]
        if can_compile(kernel):
            asm = assembly(kernel, **launch.options())
            counts = asm.count("HGMMA"), asm.count("WARPGROUP.DEPBAR")
            cells += [*counts, sum(asm.counts.values()), asm.registers, asm.spill_stores]
        pairs = zip(cells, head[1:], strict=False)
        lines.append(f"{name:26}" + "".join(f"{x:>{len(title) + 2}}" for x, title in pairs))
    return "\n".join(lines)


def exposed_products(kernels, launch, chunks, ns, tokens=4096):
    """Products that run while their program only waits, as text: what one program on an SM pays.

    Args:
        kernels: {name: kernel}. launch: a `GluonLaunch` of so many chunks.
        ns: the time of one product at full rate, in nanoseconds.
        tokens: of the sequence that the last column is for, in chunks of 64.
    """
    lines = [
        f"{'per chunk':26}{'products':>10}{'exposed':>9}{'ns':>6}{f'µs for {tokens:,} tokens':>23}"
    ]
    for name, kernel in kernels.items():
        gluon_trace = trace(kernel, launch)
        products = len(gluon_trace.of("product")) // chunks
        exposed = products - gluon_trace.hidden("product") // chunks
        waited = exposed * ns
        lines.append(
            f"{name:26}{products:10}{exposed:9}{waited:6.0f}{waited * tokens / 64e3:23.1f}"
        )
    return "\n".join([*lines, "computed from the traces, not measured"])
