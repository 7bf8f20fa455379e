"""What stands on a page between `<!-- BEGIN name -->` and `<!-- END name -->`, by name.

Each block is a function of the folder of records (None: this project's own). A block whose record
is not there is one line, with the command that makes it.
"""

from rwkv_lessons.bench import gpu_tests
from rwkv_lessons.bench.commands.record_all import planned
from rwkv_lessons.lab.lessons.lesson_18 import pictures as race
from rwkv_lessons.lab.pictures import ladder
from rwkv_lessons.operations import LADDERS, OPERATIONS, operation_of
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.records.lookup import GPU, record
from rwkv_lessons.records.traces import load_traces
from rwkv_lessons.report import published
from rwkv_lessons.report.address import PLACEHOLDER, address

QUANTITIES = {  # heading → field of a row, format
    "GB/s": ("gb_per_s", ".0f"),
    "TFLOP/s": ("tflop_per_s", ".1f"),
    "of roofline": ("roofline_share", ".0%"),
    "registers": ("registers", "d"),
    "local bytes": ("local_bytes", "d"),
    "error": ("error", ".1e"),
}
FORWARD = ("wkv6", "wkv6-small", "wkv6-sizes")  # records of the table of all shapes
BOTH = ("wkv6-backward", "wkv6-backward-small", "wkv6-backward-sizes")
METHODS = ("wkv6", "chunked", "recurrent", "cuda")


def _block(name):
    """Makes a block of a function of a record."""

    def of(write):
        def block(folder):
            try:
                found = record(name, GPU, folder)
            except LookupError:
                return unrecorded(name)
            return write(found)

        return block

    return of


def unrecorded(name):
    return f"Not recorded yet; `{planned(name)}`"


def ladder_block(operation):
    """The rungs of a ladder, each with its time and how much faster it made the first."""
    dtypes = LADDERS[operation].dtypes

    def line(climbed, step, dtype, folder):
        row, ms = step.rows[dtype], step.ms_in(dtype)
        cells = [step.label, *([dtype] if len(dtypes) > 1 else []), _text(ms, ".2f")]
        if ms:
            cells[-1] += f" ({row.p20_ms:.2f} … {row.p80_ms:.2f})"
        cells.append(_text(ladder.faster_than_first(climbed, step, dtype), ".1f"))
        cells.append(_text(step.original_ms, ".2f"))
        return cells + _quantities(row)

    def block(folder):
        climbed = ladder.steps(operation, folder=folder)
        if not any(step.row for step in climbed):
            return unrecorded(f"{operation}-ladder")
        rows = [
            line(climbed, step, dtype, folder)
            for step in climbed
            for dtype in dtypes
            if len(dtypes) == 1 or step.ms_in(dtype)
        ]
        head = ["step", *(["dtype"] if len(dtypes) > 1 else []), "ms (20 … 80 %)"]
        head += ["faster ×", "CUDA C ms", *QUANTITIES]
        where = ladder.source(operation, folder=folder).replace("\n", ".\n")
        found = older(record(f"{operation}-ladder", GPU, folder))
        return f"{_markdown(head, rows)}\n\n{where}.{found}"

    return block


def methods_block(name):
    """Every row of a record, at one shape or several."""

    def block(folder):
        try:
            return write(record(name, GPU, folder), folder)
        except LookupError:
            return unrecorded(name)

    def write(found, folder):
        shapes = {row.shape for row in found.rows}
        rows = [
            [row.method, *_shape_if(len(shapes) > 1, row), row.dtype]
            + [_text(row.median_ms, ".3f"), _text(row.host_ms, ".3f")]
            + _quantities(row)
            + [row.problem or row.note or ""]
            for row in found.rows
        ]
        operation = operation_of(name)
        letters = operation.letters
        of_several = [letters] if len(shapes) > 1 else []
        head = ["method", *of_several, "dtype", "ms", "wall-clock ms per call", *QUANTITIES, ""]
        said = [operation.timed] if any(row.median_ms for row in found.rows) else []
        said += [] if of_several else [operation.sizes(found.rows[0].shape)]
        what = ", ".join(said) + ". " if said else ""
        return f"{_markdown(head, rows)}\n\n{what}{found.provenance}.{older(found)}"

    return block


def older(found):
    """Sentences for a record of what has changed since, to stand behind its provenance."""
    stale = list(dict.fromkeys(row.method for row in found.rows if row.stale))
    text = f" **Measured with older kernels, and to be measured again: {', '.join(stale)}.**"
    host = " *Host code has changed since.*"
    return text * bool(stale) + host * any(row.host_changed for row in found.rows)


def _shape_if(wanted, row):
    return [_shape(row)] if wanted else []


def by_shape_block(name, cell, says=""):
    """A line per shape, a column per method: where the methods of a record are to be compared."""

    @_block(name)
    def block(found):
        methods = list(dict.fromkeys(row.method for row in found.rows))
        lines = {}
        for row in found.rows:
            lines.setdefault((_shape(row), row.dtype), {})[row.method] = row.problem or cell(row)
        table = [[*key, *(cells.get(m, "–") for m in methods)] for key, cells in lines.items()]
        text = _markdown([operation_of(name).letters, "dtype", *methods], table)
        return f"{text}\n\n{says}{found.provenance}.{older(found)}"

    return block


def beside_torch_block(name):
    """Microseconds of `decode`, in pages, too, and of torch, by shape, and the ratio in words."""
    return _block(name)(lambda found: _beside_torch(name, found))


def _beside_torch(name, found):
    methods = ("decode", "torch absorbed")
    replayed = ", graph replay"
    columns = [m + how for how in ("", replayed) for m in methods]
    in_pages = {row.shape: row.method for row in found.rows if row.method.startswith("paged")}
    columns += ["paged", "paged" + replayed] if in_pages else []
    rows, faster, letters = [], [], operation_of(name).letters
    for shape in dict.fromkeys(row.shape for row in found.rows):
        known = columns if shape in in_pages else columns[:4]
        ours, *others = (found.row(m, shape) for m in known)
        times = [row.median_ms for row in (ours, *others)]
        faster += [times[1] / times[0], times[3] / times[2]]
        rates = [_text(getattr(ours, f), form) for f, form in _fields("GB/s", "of roofline")]
        micro = [f"{1e3 * ms:.1f}" for ms in times] + ["–"] * (len(columns) - len(known))
        rows.append([_shape(ours), *micro, *rates, f"{ours.error:.1e}"])
    text = _markdown([letters, *columns, "GB/s", "of roofline", "error"], rows)
    said = f"{min(faster):.1f} to {max(faster):.1f} times as fast as torch. {found.provenance}."
    dtype = found.rows[0].dtype
    return f"{text}\n\nMicroseconds, {dtype}, W_V included: {said}{older(found)}"


def headline_block(folder):
    """One line an operation: this library, the other way in the same run, and the ratio."""
    rows, sources = [], {}
    lines = [operation.headline for operation in OPERATIONS.values() if operation.headline]
    for line in lines:
        try:
            found = record(line.record, GPU, folder)
        except LookupError:
            continue  # the others are shown
        ours, theirs = (found.row(x, line.shape).median_ms for x in (line.ours, line.theirs))
        cells = (f"{ours:.3f}", f"{theirs:.3f}", line.whose, f"{theirs / ours:.1f}")
        rows.append([line.says, ", ".join(map(str, line.shape)), *cells])
        where = found.provenance
        sources[f"{where.gpu}, {where.date}, commit {where.commit}"] = None
    if not rows:
        return unrecorded(lines[0].record)
    text = _markdown(["", "shape", "ms here", "ms beside it", "by", "times faster"], rows)
    said = "bfloat16 unless said; B, T, H, N, and for MLA B, N, H, R, P, V. Both in one run"
    return f"{text}\n\n{said}: {'; '.join(sources)}."


def shapes_block(folder):
    """WKV-6 at every shape that was measured, forward, and forward and backward; ms."""
    cells = {}
    for what, names in (("forward", FORWARD), ("both", BOTH)):
        for row in (row for name in names for row in _rows(name, folder)):
            if row.method in METHODS:
                text = row.problem or f"{row.median_ms:.3f}"
                cells.setdefault((row.shape, row.dtype), {})[what, row.method] = text
    if not cells:
        return "\n".join(unrecorded(name) for name in FORWARD + BOTH)
    columns = [(what, m) for what in ("forward", "both") for m in METHODS]
    columns = [c for c in columns if any(c in line for line in cells.values())]
    table = [
        [", ".join(map(str, shape)), dtype, *(line.get(c, "–") for c in columns)]
        for (shape, dtype), line in sorted(cells.items(), key=lambda x: (x[0][1], x[0][0]))
    ]
    head = ["B, T, H, N", "dtype", *(f"{m}, {what}" for what, m in columns)]
    return _markdown(head, table) + "\n\nMilliseconds; both: forward and backward."


def wind_block(folder):
    """wind_rwkv's table of RWKV-7 kernels with our rows in it."""
    head, rows, sources = published.wind_table(folder)
    if not sources:
        return unrecorded("wkv7-backward")
    return f"{_markdown(head, rows)}\n\nOurs: {'; '.join(sources)}."


def race_block(name):
    """Lesson 18's calls at both shapes, beside the blog post's on an A800."""

    def block(folder):
        try:
            where, traces = load_traces(name, GPU, folder)
        except LookupError:
            return unrecorded(name)
        shapes = dict.fromkeys(trace.shape for trace in traces)
        parts = [(shape, _markdown(*race.rows(traces, shape))) for shape in shapes]
        text = "\n\n".join(f"{operation_of(name).sizes(x)}, µs:\n\n{part}" for x, part in parts)
        return f"{text}\n\n{where}.{older(record(name, GPU, folder))}"

    return block


def _rows(name, folder):
    try:
        return record(name, GPU, folder).rows
    except LookupError:
        return ()


def counters_block(ladder):
    def block(folder):
        from rwkv_lessons.bench import counters

        try:
            head, rows, where = counters.table(ladder, folder)
        except LookupError:
            command = f"python -m {counters.__name__} {ladder} --record"
            return f"Not recorded yet; `{command}`"
        letters = operation_of(ladder).letters.split(", ")
        shape = " ".join(map("{}={}".format, letters, counters.SHAPES[ladder]))
        return f"{_markdown(head, rows)}\n\n{shape}. {where}."

    return block


def time_x_seed_block(folder):
    """The article's table, forward, with our kernels on our GPU beside it."""
    from rwkv_lessons.lab.lessons.lessons_10_11 import pictures as timex

    climbed = ladder.steps("timex", folder=folder)
    if not any(step.row for step in climbed):
        return unrecorded("timex-ladder")
    conv1d = [row for row in _rows("timex-peers", folder) if row.method == "conv1d"]
    here = next((row.median_ms for row in conv1d if row.dtype == "float32"), None)
    kernels = [rung.kernel for rung in LADDERS["timex"].rungs]
    lines = [("torch, conv1d", "conv1d", _text(here, ".2f"))]
    for step, kernel in zip(climbed, [*kernels, None], strict=True):
        lines.append((step.label, kernel, _text(step.ms, ".3f")))
    gpus = timex.ORIGINAL_GPUS
    rows = [
        [label, *(_text(timex.original_ms(kernel, gpu), "g") for gpu in gpus), ms]
        for label, kernel, ms in lines
    ]
    head = ["forward, float32, ms", *(f"CUDA C, {gpu}" for gpu in gpus), f"here, {GPU}"]
    cited = (record("rwkv-cuda-timex", gpu).provenance for gpu in gpus)
    said = "; ".join(f"{x.gpu}, {x.date}, {x.timing}" for x in cited)
    ours = ladder.source("timex", folder=folder).splitlines()[0]
    return f"{_markdown(head, rows)}\n\nCUDA C and its conv1d: RWKV-CUDA, {said}. Here: {ours}."


def gpu_tests_block(folder):
    """How the tests went on each GPU, and whether the kernels are still those."""
    rows = gpu_tests.rows(folder)
    if not rows:
        return f"Not recorded yet; `{gpu_tests.COMMAND}`"
    return _markdown(gpu_tests.HEAD, rows)


COLAB = (
    "!git clone --depth 1 {} rwkv-lessons && cd rwkv-lessons && pip install -q "
    "-c requirements.lock -e './warplens[numba,triton,pictures]' -e '.[cuda,lessons]'"
)


def colab_block(folder):
    """What a lesson needs on Colab, with the repository's address once it is known."""
    return f"```\n{COLAB.format(address(ROOT) or PLACEHOLDER)}\n```"


def _tokens_per_s(row):
    return f"{row.shape[0] * row.shape[2] / row.host_ms * 1e3:,.0f}"


# A plan's `table` → the function that makes the block of a record's name.
KINDS = {
    "methods": methods_block,
    "beside torch": beside_torch_block,
    "race": race_block,
    "milliseconds by shape": lambda name: by_shape_block(
        name, lambda row: f"{row.median_ms:.3f}", "Milliseconds. "
    ),
    "tokens per second by shape": lambda name: by_shape_block(
        name, _tokens_per_s, "Tokens out per second. "
    ),
}
BLOCKS = {ladder.plan.name: ladder_block(name) for name, ladder in LADDERS.items()}
BLOCKS |= {
    plan.name: KINDS[plan.table](plan.name)
    for operation in OPERATIONS.values()
    for plan in operation.records
    if plan.table
}
BLOCKS |= {
    "headline": headline_block,
    "colab": colab_block,
    "gpu-tests": gpu_tests_block,
    "wkv5-counters": counters_block("wkv5"),
    "timex-counters": counters_block("timex"),
    "timex-seed": time_x_seed_block,
    "wkv7-published": wind_block,
    "wkv6-shapes": shapes_block,
}


def _shape(row):
    return ", ".join(map(str, row.shape))


def _quantities(row):
    """The cells of QUANTITIES, as they were recorded."""
    if row is None:
        return ["–"] * len(QUANTITIES)
    return [_text(getattr(row, field), form) for field, form in _fields()]


def _fields(*headings):
    return [QUANTITIES[heading] for heading in headings or QUANTITIES]


def _markdown(head, rows):
    """A table, without the columns in which nothing stands."""
    full = [n for n in range(len(head)) if any(row[n] not in ("–", "") for row in rows)]
    lines = ["| " + " | ".join(cells[n] for n in full) + " |" for cells in [head, *rows]]
    rule = "|---" + "|---:" * (len(full) - 1) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _text(value, form):
    return "–" if value is None else format(value, form)
