"""The generated tables of README.md and docs/, by the name in `<!-- BEGIN name -->`.

Each block is a function of the folder of records (None: this project's own). A block whose record
is missing is one line with the command that makes it. A table is at most as wide as a laptop's
page: a column that holds one value throughout moves into the caption, notes go below the table,
and where a page's numbers come from is said once, in its `provenance` block.
"""

import re

from rwkv_lessons.bench import gpu_tests
from rwkv_lessons.bench.commands.record_all import PLANS, planned
from rwkv_lessons.lab.lessons.lesson_18 import pictures as race
from rwkv_lessons.lab.lessons.lesson_21.decays import SHOWN
from rwkv_lessons.lab.pictures import ladder
from rwkv_lessons.operations import LADDERS, OPERATIONS, operation_of
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.operations.work import MOST_DRAFTS, served_lengths
from rwkv_lessons.records.lookup import GPU, beside, is_stale, newest, record, recorded
from rwkv_lessons.records.traces import load_traces
from rwkv_lessons.report import published
from rwkv_lessons.report.address import PLACEHOLDER, address

QUANTITIES = {  # heading → field of a row, format
    "GB/s": ("gb_per_s", ".0f"),
    "of roofline": ("roofline_share", ".0%"),
    "registers": ("registers", "d"),
    "error": ("error", ".1e"),
}
# A page of docs/results/ → how the names of its records begin.
RECORDS_OF = {
    "rwkv5": "wkv5",
    "rwkv6": "wkv6",
    "rwkv7": "wkv7",
    "timex": "timex",
    "mla": "mla",
    "training": "train",
    "many_gpus": "sequence-parallel",
}
PAGES = RECORDS_OF | {"kda": "kda"}  # docs/kda.md is about more than results
CALLS = {  # of `decode`, beside those that have a column
    "padded": "`padded` computes 64 heads in bfloat16 and keeps 16 or 8.",
    "fp8": "`fp8` reads a cache of 656 bytes a token instead of 1,152.",
    "lists": "`lists` reads 2,048 listed tokens of each sequence, in bfloat16.",
    "fp8 lists": "`fp8 lists` reads lists from an FP8 cache.",
}
OLDER = " †"  # marks what was measured with older kernels
FORWARD = ("wkv6", "wkv6-small", "wkv6-sizes")  # records of the table of all shapes
BOTH = ("wkv6-backward", "wkv6-backward-small", "wkv6-backward-sizes")
METHODS = ("wkv6", "chunked", "recurrent", "cuda")


def _block(name):
    """Makes a block of a function of a record."""

    def of(write):
        def block(folder):
            measured, other = recorded(name, GPU, folder), beside(name, GPU, folder)
            parts = [write(measured) if measured else unrecorded(name)]
            if other:
                parts = [*parts[: bool(measured)], _where(other), write(other)]
            return "\n\n".join(parts)

        return block

    return of


def _where(measured):
    on = "On" if is_stale(measured) else "With today's kernels, on"
    return f"{on} an {measured.provenance.gpu}:"


def unrecorded(name):
    return f"Not recorded yet; `{planned(name)}`"


def ladder_block(operation):
    """The rungs of a ladder: the time of each, and how much faster it is than the first."""
    dtypes = LADDERS[operation].dtypes

    def line(climbed, step, dtype):
        cells = [step.label, dtype, _text(step.ms_in(dtype), ".2f")]
        cells.append(_text(ladder.faster_than_first(climbed, step, dtype), ".1f"))
        return [*cells, _text(step.original_ms, ".2f"), *_quantities(step.rows[dtype])]

    def block(folder):
        if not any(step.row for step in ladder.steps(operation, folder=folder)):
            return unrecorded(f"{operation}-ladder")
        text, other = write(GPU, folder), beside(f"{operation}-ladder", GPU, folder)
        if other:
            text += f"\n\n{_where(other)}\n\n{write(other.provenance.gpu, folder)}"
        return text

    def write(gpu, folder):
        climbed = ladder.steps(operation, gpu, folder)
        rows = [
            line(climbed, step, dtype)
            for step in climbed
            for dtype in dtypes
            if len(dtypes) == 1 or step.ms_in(dtype)
        ]
        head = ["step", "dtype", "ms", "× faster", "CUDA C, ms", *QUANTITIES]
        if len(dtypes) == 1:
            head, rows = _without("dtype", head, rows)
        source = ladder.source(operation, gpu, folder).replace("\n", ".\n")
        measured = record(f"{operation}-ladder", gpu, folder)
        return f"{_markdown(head, rows)}\n\n{source}.{older(measured)}"

    return block


def methods_block(name, noted=False):
    """Every row of a record, at one shape or several; `noted`: with each row's note beside it."""

    @_block(name)
    def block(measured):
        operation = operation_of(name)
        rows = [
            [row.method, _shape(row), row.dtype]
            + [_text(row.median_ms, ".3f"), _text(row.host_ms, ".3f")]
            + _quantities(row)
            + [(row.note or "").replace(" of it the recurrence", " recurrence") if noted else ""]
            for row in measured.rows
        ]
        head = ["method", operation.letters, "dtype", "ms", "call, ms", *QUANTITIES, "result"]
        caption = [operation.timed] if any(row.median_ms for row in measured.rows) else []
        if len({row.shape for row in measured.rows}) == 1:
            head, rows = _without(operation.letters, head, rows)
            caption.append(operation.sizes(measured.rows[0].shape))
        if len({row.dtype for row in measured.rows}) == 1:
            head, rows = _without("dtype", head, rows)
            caption.append(measured.rows[0].dtype)
        text = _markdown(*_without("registers", head, rows))
        return _below(text, ", ".join(caption), measured, () if noted else _notes(measured))

    return block


def older(measured):
    """A sentence that names the methods whose kernels have changed since the record; or ""."""
    stale = _stale_methods(measured)
    return f" **Measured with older kernels, and to be measured again: {stale}.**" * bool(stale)


def _stale_methods(measured):
    stale = (row.method.split(",")[0] for row in measured.rows if row.stale)
    return ", ".join(dict.fromkeys(stale))


def _below(table, caption, measured, notes=()):
    """A table with its caption, what has changed since, and its notes, a line each."""
    lines = [f"{caption}.{older(measured)}" if caption else older(measured).strip()]
    return "\n\n".join([table, "\\\n".join(filter(None, [*lines, *notes]))]).rstrip()


def _notes(measured, shown=""):
    """Each note and each problem of a record once, behind the methods that it is about."""
    methods_by_text = {}
    for row in measured.rows:
        text = row.problem or re.sub(shown, "", row.note or "")
        if text:
            shape = f" ({_shape(row)}, {row.dtype})" if row.problem else ""
            methods_by_text.setdefault(text, {})[f"{row.method}{shape}"] = None
    return [f"{', '.join(methods)}: {text}." for text, methods in methods_by_text.items()]


def by_shape_block(name, cell, unit, shown=""):
    """A line per shape, a column per method, to compare the methods of a record.

    shown: what of a note is in the cells, as a regular expression, and not in the notes.
    """

    @_block(name)
    def block(measured):
        methods = list(dict.fromkeys(row.method for row in measured.rows))
        lines = {}
        for row in measured.rows:
            text = "not timed" if row.problem else cell(row)
            lines.setdefault((_shape(row), row.dtype), {})[row.method] = text
        rows = [[*key, *(cells.get(m, "–") for m in methods)] for key, cells in lines.items()]
        head, caption = [operation_of(name).letters, "dtype", *methods], unit
        if len({row.dtype for row in measured.rows}) == 1:
            head, rows = _without("dtype", head, rows)
            caption += f", {measured.rows[0].dtype}"
        notes = _notes(measured, shown)
        return _below(_markdown(head, rows), caption, measured, notes)

    return block


def decays_block(name):
    """A line per case of decays; of each method a column for each pass."""

    @_block(name)
    def block(measured):
        lines, columns = {}, {}
        for row in measured.rows:
            method, _, case = row.method.partition(", ")
            case, both, _ = case.partition(", both passes")
            case = SHOWN.get(case, case)
            column = f"{method}, {'both' if both else 'forward'}"
            columns[column] = None
            lines.setdefault(case, {})[column] = _text(row.median_ms, ".3f")
        rows = [[case, *(cells.get(c, "–") for c in columns)] for case, cells in lines.items()]
        sizes = operation_of(name).sizes(measured.rows[0].shape)
        errors = [row.error for row in measured.rows if row.error is not None]
        caption = (
            f"Milliseconds, {sizes}, {measured.rows[0].dtype}, error at most {max(errors):.1e}"
        )
        return _below(_markdown(["decays", *columns], rows), caption, measured)

    return block


def serving_block(name):
    """A line per call, a column per type of state: eager, and replayed from a CUDA graph."""

    @_block(name)
    def block(measured):
        lines, states = {}, {}
        for row in measured.rows:
            method, replay, _ = row.method.partition(", graph replay")
            words = method.split(", ")
            (state,) = (x for x in words if x.endswith(" state"))
            states[state] = None
            what = ", ".join([_served(row.shape), *(x for x in words if x != state)])
            lines.setdefault(what, {}).setdefault(state, ["–", "–"])[bool(replay)] = (
                "not timed" if row.problem else _text(row.median_ms, ".3f")
            )
        rows = [
            [what, *("; ".join(cells.get(x, ("–",))) for x in states)]
            for what, cells in lines.items()
        ]
        H, N = measured.rows[0].shape[2:]
        caption = f"Milliseconds, eager; replayed. H={H} N={N}, {measured.rows[0].dtype}"
        return _below(_markdown(["call", *states], rows), caption, measured)

    return block


def _served(shape):
    """What one call serves, of a shape as `served_lengths` reads it."""
    S, T, *_ = shape
    if T == 1:
        return f"1 token for each of {S}"
    if T <= MOST_DRAFTS:
        return f"{T} drafts for each of {S}"
    prompts = sum(n > 1 for n in served_lengths(S, T))
    return f"{prompts} prompts and {S - prompts} single tokens"


def two_gpus_block(name):
    """Whole calls on one GPU and on two; below them, folded, the parts of a call on two."""

    @_block(name)
    def block(measured):
        calls, parts = {}, {}
        for row in measured.rows:
            line, step = _line_and_step(row)
            if step[0] in ("one GPU", "two GPUs"):
                calls.setdefault(line, {})[step] = row.median_ms
            else:
                parts.setdefault(line, {})[step[0]] = _text(row.median_ms, ".3f")
        keys = ["tokens", "method", "decays"]
        head, passes = list(keys), ("forward", "both")
        head += [f"{what}, {on}" for what in passes for on in ("one", "two", "×")]
        rows = []
        for line, times in calls.items():
            pairs = [[times.get((on, what)) for on in ("one GPU", "two GPUs")] for what in passes]
            cells = [
                [*(_text(ms, ".3f") for ms in pair), _text(_ratio(*pair), ".2f")] for pair in pairs
            ]
            rows.append([*line, *cells[0], *cells[1]])
        whole = _below(
            _markdown(head, rows), f"Milliseconds, {measured.rows[0].dtype}, 64 heads", measured
        )
        steps = list(dict.fromkeys(step for line in parts.values() for step in line))
        rows = [[*line, *(cells.get(x, "–") for x in steps)] for line, cells in parts.items()]
        table = _markdown([*keys, *steps], rows)
        return (
            f"{whole}\n\n<details><summary>The parts of a forward call on two GPUs, ms</summary>"
            f"\n\n{table}\n\n</details>"
        )

    return block


def _line_and_step(row):
    """((tokens, method, decays), (step, pass)) of a row of `sequence-parallel`."""
    method, *names = row.method.split(", ")
    passes = "both" if "both passes" in names else "forward"
    decays = "none" if "nothing decays" in names else "mild"
    (step,) = (name for name in names if name not in ("both passes", "nothing decays"))
    return (f"{row.shape[2]:,}", method, decays), (step, passes)


def _ratio(one, two):
    return one / two if one and two else None


def provenance_block(page):
    """Where the numbers of a page of docs/results/ come from: GPU, versions, commands, folded."""

    def block(folder):
        sources = {}
        for name in _names_of(page):
            both = recorded(name, GPU, folder), beside(name, GPU, folder)
            for measured in filter(None, both):
                machine, line = _source(measured)
                sources.setdefault(machine, []).append(line)
        if not sources:
            return unrecorded(_names_of(page)[0])
        parts = [f"{machine}:\n\n" + "\n".join(lines) for machine, lines in sources.items()]
        text = "\n\n".join(parts)
        if "\\*" in text:
            text += (
                "\n\n\\* The Python code around the kernels, which checks arguments and launches,"
                " has changed since. The kernels have not, except those that a line names as older."
            )
        return f"<details><summary>Where these numbers come from</summary>\n\n{text}\n\n</details>"

    return block


def _source(measured):
    """(the machine and its versions, a line about the record)."""
    origin = measured.provenance
    versions = ", ".join(f"{package} {release}" for package, release in origin.versions())
    mark = " \\*" if any(row.host_changed for row in measured.rows) else ""
    line = f"- {origin.date}, commit {origin.commit}{mark}: `{origin.command}` ({origin.timing})"
    if stale := _stale_methods(measured):
        line += f"; older kernels: {stale}"
    return f"{origin.gpu}, driver {origin.driver} (CUDA {origin.cuda}), {versions}", line


def _names_of(page):
    """The records of a page."""
    begins = PAGES[page]
    return [plan.name for plan in PLANS if plan.name.split("-")[0] == begins or plan.name == begins]


def beside_torch_block(name):
    """Microseconds of `decode`, in pages, too, and of torch, by shape, and the ratio in words."""
    return _block(name)(lambda measured: _beside_torch(name, measured))


def _beside_torch(name, measured):
    methods = ("decode", "torch absorbed")
    replayed = ", graph replay"
    columns = [m + how for how in ("", replayed) for m in methods]
    in_pages = {row.shape: row.method for row in measured.rows if row.method.startswith("paged")}
    columns += ["paged", "paged" + replayed] if in_pages else []
    rows, faster, letters = [], [], operation_of(name).letters
    for shape in dict.fromkeys(row.shape for row in measured.rows):
        methods_here = columns if shape in in_pages else columns[:4]
        ours, *others = (measured.row(m, shape) for m in methods_here)
        times = [row.median_ms for row in (ours, *others)]
        faster += [times[1] / times[0], times[3] / times[2]]
        micro = [f"{1e3 * ms:.1f}" for ms in times] + ["–"] * (len(columns) - len(methods_here))
        rows.append([_shape(ours), *micro, _text(ours.roofline_share, ".0%"), f"{ours.error:.1e}"])
    head = [column.replace(" absorbed", "").replace(" replay", "") for column in columns]
    text = _markdown([letters, *head, "of roofline", "error"], rows)
    caption = (
        f"Microseconds, {measured.rows[0].dtype}, W_V included; graph: replay of a CUDA graph."
    )
    caption += f" {min(faster):.1f} to {max(faster):.1f} times as fast as torch"
    return _below(text, caption, measured) + _other_calls(measured, columns, letters)


def _other_calls(measured, columns, letters):
    """A line for each way of calling `decode` that is in none of the columns; "" without one."""
    replayed, rows = ", graph replay", []
    for row in measured.rows:
        if row.method in columns or row.method.endswith(replayed):
            continue
        if row.problem:
            rows.append([_shape(row), row.method, "not timed", "–", "–", "–"])
            continue
        graph = measured.milliseconds(row.method + replayed, row.shape)
        micro = [f"{1e3 * ms:.1f}" for ms in (row.median_ms, graph)]
        share = _text(row.roofline_share, ".0%")
        rows.append([_shape(row), row.method, *micro, share, f"{row.error:.1e}"])
    head = [letters, "call", "µs", "graph", "of roofline", "error"]
    calls = " ".join(text for method, text in CALLS.items() if any(x[1] == method for x in rows))
    about = f"More ways to decode with few heads, to compare with `decode` above. {calls}"
    return f"\n\n{about}\n\n{_markdown(head, rows)}" if rows else ""


def headline_block(folder):
    """A line an operation: this library, the alternative in the same run, and the ratio."""
    rows, sources = [], {}
    lines = [operation.headline for operation in OPERATIONS.values() if operation.headline]
    for line in lines:
        measured = newest(line.record, folder=folder)
        if not measured:
            continue  # the others are shown
        both = [measured.row(x, line.shape, line.dtype) for x in (line.ours, line.theirs)]
        old = OLDER * any(row.stale for row in both)
        ours, theirs = (row.median_ms for row in both)
        ratio = theirs / ours  # below 2, a tenth would be 5 % and more
        cells = (f"{ours:.3f}", line.whose, f"{theirs:.3f}", f"{ratio:.{1 + (ratio < 2)}f}×")
        origin = measured.provenance
        on = "" if origin.gpu == GPU else f" ({origin.gpu.split()[1]})"
        rows.append([f"{line.says}{on}{old}", ", ".join(map(str, line.shape)), *cells])
        sources.setdefault(origin.gpu, set()).add(origin.date)
    if not rows:
        return unrecorded(lines[0].record)
    head = ["operation", "shape", "ours, ms", "alternative", "its ms", "speed-up"]
    caption = (
        "bfloat16 unless stated otherwise. Shapes are B, T, H, N; for latent attention"
        " B, N, H, R, P, V; for time-x B, C, T; for the model B, T, layers, width. Both times of a"
        " row are from the same run"
    )
    dates = "; ".join(
        f"{gpu}, {'–'.join(dict.fromkeys((min(dates), max(dates))))}"
        for gpu, dates in sources.items()
    )
    older_rows = any(row[0].endswith(OLDER) for row in rows)
    note = f"{OLDER}: measured with older kernels, to be measured again." * older_rows
    return f"{_markdown(head, rows)}\n\n{caption}: {dates}.{note}"


def shapes_block(folder):
    """WKV-6 at every shape that was measured, forward, and forward and backward; ms."""
    cells, problems = {}, {}
    for passes, names in (("forward", FORWARD), ("both", BOTH)):
        for row in (row for name in names for row in _rows(name, folder)):
            if row.method in METHODS:
                text = "not timed" if row.problem else f"{row.median_ms:.3f}"
                cells.setdefault((row.shape, row.dtype), {})[passes, row.method] = text
            if row.problem:
                problems[f"{row.dtype}, {passes}: {row.problem}"] = None
    if not cells:
        return "\n".join(unrecorded(name) for name in FORWARD + BOTH)
    columns = [(passes, m) for passes in ("forward", "both") for m in METHODS]
    columns = [c for c in columns if any(c in line for line in cells.values())]
    table = [
        [", ".join(map(str, shape)), dtype, *(line.get(c, "–") for c in columns)]
        for (shape, dtype), line in sorted(cells.items(), key=lambda x: (x[0][1], x[0][0]))
    ]
    head = ["B, T, H, N", "dtype", *(f"{m}, {passes}" for passes, m in columns)]
    notes = "".join(f"\\\n{problem}." for problem in problems)
    return f"{_markdown(head, table)}\n\nMilliseconds; both: forward and backward.{notes}"


def wind_block(folder):
    """wind_rwkv's table of RWKV-7 kernels with our rows in it."""
    head, rows = published.wind_table(folder)
    if len(rows) == len(published.WIND):
        return unrecorded("wkv7-backward")
    return f"{_markdown(head, rows)}\n\nMilliseconds; columns: batch, head size, tokens."


def race_block(name):
    """Lesson 18's calls at both shapes, beside the blog post's on an A800."""

    def block(folder):
        try:
            _, traces = load_traces(name, GPU, folder)
        except LookupError:
            return unrecorded(name)
        shapes = dict.fromkeys(trace.shape for trace in traces)
        parts = [(shape, _markdown(*race.rows(traces, shape))) for shape in shapes]
        text = "\n\n".join(f"{operation_of(name).sizes(x)}, µs:\n\n{part}" for x, part in parts)
        return _below(text, "", record(name, GPU, folder))

    return block


def _rows(name, folder):
    measured = recorded(name, GPU, folder)
    return measured.rows if measured else ()


def counters_block(ladder):
    def block(folder):
        from rwkv_lessons.bench import counters

        try:
            head, rows, origin = counters.table(ladder, folder)
        except LookupError:
            command = f"python -m {counters.__name__} {ladder} --record"
            return f"Not recorded yet; `{command}`"
        letters = operation_of(ladder).letters.split(", ")
        shape = " ".join(map("{}={}".format, letters, counters.SHAPES[ladder]))
        return f"{_markdown(head, rows)}\n\n{shape}. {origin}."

    return block


def time_x_seed_block(folder):
    """The article's table, forward, with our kernels on our GPU beside it."""
    from rwkv_lessons.lab.lessons.lessons_10_11 import pictures as timex

    climbed = ladder.steps("timex", folder=folder)
    if not any(step.row for step in climbed):
        return unrecorded("timex-ladder")
    conv1d = [row for row in _rows("timex-peers", folder) if row.method == "conv1d"]
    conv1d_ms = next((row.median_ms for row in conv1d if row.dtype == "float32"), None)
    kernels = [rung.kernel for rung in LADDERS["timex"].rungs]
    lines = [("torch, conv1d", "conv1d", _text(conv1d_ms, ".2f"))]
    for step, kernel in zip(climbed, [*kernels, None], strict=True):
        lines.append((step.label, kernel, _text(step.ms, ".3f")))
    gpus = timex.ORIGINAL_GPUS
    rows = [
        [label, *(_text(timex.original_ms(kernel, gpu), "g") for gpu in gpus), ms]
        for label, kernel, ms in lines
    ]
    shorter = [gpu.removeprefix("NVIDIA ") for gpu in (*gpus, GPU)]
    head = ["step", *(f"CUDA C, {gpu}" for gpu in shorter[:-1]), f"here, {shorter[-1]}"]
    cited = (record("rwkv-cuda-timex", gpu).provenance for gpu in gpus)
    sources = "; ".join(f"{x.gpu}, {x.date}, {x.timing}" for x in cited)
    text = _markdown(head, rows)
    return f"{text}\n\nForward, float32, ms. CUDA C and its conv1d: RWKV-CUDA, {sources}."


def compilers_block(folder):
    """What each compiler makes of the same kernels, and how fast it is."""
    from rwkv_lessons.bench.machine_code import compilers

    columns = compilers.load(folder)
    return compilers.table(columns) or f"Not recorded yet; `{compilers.COMMAND}`"


def gpu_tests_block(folder):
    """How the tests went on each GPU, and whether the kernels are still those."""
    rows = gpu_tests.rows(folder)
    if not rows:
        return f"Not recorded yet; `{gpu_tests.COMMAND}`"
    machines = "\\\n".join(f"{row[0]}: {row[-1]}." for row in rows)
    return f"{_markdown(gpu_tests.HEAD[:-1], [row[:-1] for row in rows])}\n\n{machines}"


# Keeps Colab's torch and kernel, and its Triton; without a GPU Colab has none, and takes the tested
# one. Its driver takes what CUDA 12 compiles.
COLAB = (
    "!git clone --depth 1 {} rwkv-lessons && cd rwkv-lessons && pip install -q "
    "-e './warplens[numba,triton,pictures]' -e '.[lessons]' 'numba-cuda[cu12]>=0.30.4' 'triton<3.8'"
)


def colab_block(folder):
    """What a lesson needs on Colab, with the repository's address once it is known."""
    return f"```\n{COLAB.format(address(ROOT) or PLACEHOLDER)}\n```"


PROMPT = r"; tokens in (\d+) ms.*"  # of a note: how long the model read


def _generated(row):
    """Tokens out per second, and the milliseconds of the prompt."""
    rate = f"{row.shape[0] * row.shape[2] / row.host_ms * 1e3:,.0f}"
    read = re.search(PROMPT, row.note or "")
    return f"{rate}; {int(read[1]):,}" if read else rate


# A plan's `table` → the function that makes the block of a record's name.
KINDS = {
    "methods": methods_block,
    "methods, with results": lambda name: methods_block(name, noted=True),
    "decays": decays_block,
    "two GPUs": two_gpus_block,
    "serving": serving_block,
    "beside torch": beside_torch_block,
    "race": race_block,
    "milliseconds by shape": lambda name: by_shape_block(
        name, lambda row: _text(row.median_ms, ".3f"), "Milliseconds"
    ),
    "tokens per second by shape": lambda name: by_shape_block(
        name, _generated, "Tokens out per second; milliseconds for the tokens in", PROMPT
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
    "compilers": compilers_block,
    "wkv5-counters": counters_block("wkv5"),
    "timex-counters": counters_block("timex"),
    "timex-seed": time_x_seed_block,
    "wkv7-published": wind_block,
    "wkv6-shapes": shapes_block,
}
BLOCKS |= {f"provenance-{page}": provenance_block(page) for page in PAGES}


def _shape(row):
    return ", ".join(map(str, row.shape))


def _quantities(row):
    """The cells of QUANTITIES, as they were recorded."""
    if row is None:
        return ["–"] * len(QUANTITIES)
    return [_text(getattr(row, field), form) for field, form in QUANTITIES.values()]


def _without(heading, head, rows):
    """A table without one of its columns."""
    n = head.index(heading)
    return [*head[:n], *head[n + 1 :]], [[*row[:n], *row[n + 1 :]] for row in rows]


def _markdown(head, rows):
    """A table, without the columns in which nothing stands."""
    full = [n for n in range(len(head)) if any(row[n] not in ("–", "") for row in rows)]
    lines = ["| " + " | ".join(cells[n] for n in full) + " |" for cells in [head, *rows]]
    rule = "|---" + "|---:" * (len(full) - 1) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _text(value, form):
    return "–" if value is None else format(value, form)
