"""One picture a page of docs/results/: this library's time beside the alternatives', as bars."""

from dataclasses import dataclass

from rwkv_lessons.operations.entries import TABLE_SHAPE
from rwkv_lessons.operations.mla import DEEPSEEK_SHAPE
from rwkv_lessons.records.lookup import newest
from warplens.pictures import style


@dataclass(frozen=True)
class Chart:
    """Some methods of a record at one shape; `bars` has the label of each method."""

    title: str
    record: str
    shape: tuple[int, ...]
    bars: dict[str, str]  # method → label; this library's own come first
    ours: int = 1  # how many
    dtype: str = "bfloat16"

    def rows(self, folder):
        """(GPU, [(label, ms)]) of the methods that have a time; None and [] without a record."""
        measured = newest(self.record, folder=folder)
        times = {
            row.method: row.median_ms
            for row in (measured.rows if measured else ())
            if row.shape == self.shape and row.dtype == self.dtype and row.median_ms
        }
        rows = [(label, times[method]) for method, label in self.bars.items() if method in times]
        return measured and measured.provenance.gpu, rows


FLA = {"fla chunk": "FLA, chunked", "fla recurrent": "FLA, recurrent"}
WKV6 = {"wkv6": "this library", "cuda": "this library, CUDA, one token at a time"} | FLA
WKV7 = {"wkv7": "this library", "recurrent": "this library, one token at a time"} | FLA
TIMEX = {"timex": "this library", "cuda": "this library, CUDA", "fft": "FFT, torch"}
TIMEX |= {"conv1d": "conv1d, torch"}
MLA = {"decode": "this library", "torch absorbed": "torch"}
BOTH = "forward and backward"
ONE_TWO = {
    "wkv6, one GPU": "forward, 1 GPU",
    "wkv6, two GPUs": "forward, 2 GPUs",
    "wkv6, one GPU, both passes": "both, 1 GPU",
    "wkv6, two GPUs, both passes": "both, 2 GPUs",
}
MODEL = (8, 2048, 12, 1024)
CHARTS = {
    "rwkv6": (
        Chart("forward", "wkv6-peers", TABLE_SHAPE, WKV6, 2),
        Chart(BOTH, "wkv6-backward-peers", TABLE_SHAPE, WKV6, 2),
    ),
    "rwkv7": (
        Chart("forward", "wkv7-peers", TABLE_SHAPE, WKV7, 2),
        Chart(BOTH, "wkv7-backward-peers", TABLE_SHAPE, WKV7, 2),
    ),
    "timex": (
        Chart("forward, float32", "timex-peers", (32, 768, 768), TIMEX, 2, "float32"),
        Chart("forward, bfloat16", "timex-peers", (32, 768, 768), TIMEX, 2),
    ),
    "mla": (
        Chart("MiniCPM3, 64 × 4,096", "mla-decode", (64, 4096, 40, 256, 32, 64), MLA),
        Chart("DeepSeek-V3, 64 × 4,096", "mla-decode", DEEPSEEK_SHAPE, MLA),
    ),
    "training": (
        Chart("a training step", "train-peers", MODEL, {"wkv6": "this library"} | FLA),
        Chart(
            "the recurrence in it",
            "train-peers",
            MODEL,
            {
                f"{method}, the recurrence": label
                for method, label in [("wkv6", "this library"), *FLA.items()]
            },
        ),
    ),
    "many_gpus": tuple(
        Chart(f"{tokens:,} tokens", "sequence-parallel", (2, 1, tokens, 64, 64), ONE_TWO, 4)
        for tokens in (32768, 131072, 1048576)
    ),
}


def recorded(charts, folder=None):
    """(chart, GPU, [(label, ms)]) of each chart; [] unless every chart has something to show."""
    measured = [(chart, *chart.rows(folder)) for chart in charts]
    return measured if all(rows for *_, rows in measured) else []


def figure(measured):
    """Charts as `recorded` side by side: a bar a method, its milliseconds at its end."""
    drawing = style.figure(0.7 + 0.33 * max(len(rows) for *_, rows in measured), 9)
    axes = drawing.subplots(1, len(measured))
    for ax, (chart, gpu, rows) in zip(axes, measured, strict=True):
        labels, times = zip(*rows, strict=True)
        ours = [list(chart.bars.values()).index(label) < chart.ours for label in labels]
        colours = [style.LOAD if own else style.STORE for own in ours]
        ax.barh(labels, times, color=colours, height=0.62)
        for n, ms in enumerate(times):
            ax.annotate(f"{ms:.3g}", (ms, n), (4, 0), textcoords="offset points", va="center")
        title = f"{chart.title}, {gpu.split()[1]}, ms"
        ax.set(title=title, xlim=(0, 1.18 * max(times)))
        ax.invert_yaxis()
        ax.xaxis.set_visible(False)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    return drawing
