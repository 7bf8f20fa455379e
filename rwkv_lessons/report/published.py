"""Tables that others have published, beside what was recorded here.

RWKV-7's is wind_rwkv's (https://github.com/johanwind/wind_rwkv, README), from its own speed test:
forward and backward at width 4096, on an H100; in columns of batch, head size, tokens.
"""

from rwkv_lessons.operations.entries import DTYPES
from rwkv_lessons.records.lookup import GPU, recorded

WIND_SHAPES = ((8, 64, 4096), (8, 128, 4096), (8, 256, 4096), (1, 256, 32768))
WIND = (  # kernel, milliseconds by shape, peak memory in GB, typical error
    ("wind_rwkv: chunked bf16", (8, 11, 54, 224), "5–8", "5e-3"),
    ("wind_rwkv: backstepping fp32, long head", (23, 46, 80, 124), "8–14", "9e-5"),
    ("wind_rwkv: backstepping fp32, small head", (17, 101, 862, 1802), "7–13", "9e-5"),
    ("wind_rwkv: Triton bighead fp32", (66, 87, 168, 1175), "6–12", "5e-5"),
    ("wind_rwkv: Triton bighead bf16", (29, 59, None, 358), "6–12", "5e-3"),
    ("FLA: chunk_rwkv7", (64, 62, 89, 93), "12–13", "4e-3"),
)
OURS = (  # label, records, method, tensors of r's size that are inputs and results
    ("**wkv7**", ("wkv7-backward", "wkv7-backward-long"), "wkv7", 14),
    ("**wkv7**, forward alone", ("wkv7", "wkv7-long"), "wkv7", 7),
    ("**wkv7**, in one run with FLA", ("wkv7-backward-peers",), "wkv7", 14),
    ("FLA: chunk_rwkv7, in that run", ("wkv7-backward-peers",), "fla chunk", 14),
)
EXTRA_SHAPE = (1, 64, 32768)  # not in the published table
HEAD = ("kernel", *(", ".join(map(str, x)) for x in (*WIND_SHAPES, EXTRA_SHAPE)))
HEAD += ("memory, GB", "error")


def wind_table(folder=None):
    """(head, rows) of RWKV-7's table; ours are there as far as they are recorded."""
    rows = [_published(*line) for line in WIND]
    for label, names, method, tensors in OURS:
        records = [x for x in (recorded(name, GPU, folder) for name in names) if x]
        lines = [row for x in records for row in x.rows if row.method == method]
        if lines:
            rows.append(_ours(label, lines, tensors))
    return HEAD, rows


def _published(name, times, memory, error):
    cells = ["–" if ms is None else f"{ms}" for ms in times]
    return [name, *cells, "–", memory, error]


def _ours(label, lines, tensors):
    times = {(B, N, T): row for row in lines for B, T, H, N in [row.shape]}
    columns = [times.get(shape) for shape in (*WIND_SHAPES, EXTRA_SHAPE)]
    cells = ["–" if not row else row.problem or f"{row.median_ms:.2f}" for row in columns]
    peaks = [_peak_gb(row, tensors) for row in lines if row.extra_bytes is not None]
    errors = [row.error for row in lines if row.error is not None]
    return [label, *cells, _range(peaks, ".1f"), _range(errors, ".0e")]


def _peak_gb(row, tensors):
    """What a call holds at most: its inputs, its results, and what it needs beyond them."""
    B, T, H, N = row.shape
    return (tensors * B * T * H * N * DTYPES[row.dtype] + row.extra_bytes) / 1e9


def _range(numbers, form):
    if not numbers:
        return "–"
    ends = [format(x, form).replace("e-0", "e-") for x in (min(numbers), max(numbers))]
    return "–".join(dict.fromkeys(ends))
