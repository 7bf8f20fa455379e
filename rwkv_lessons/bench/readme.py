"""Writes the README's tables and figures from the records.

A block of the README stands between `<!-- BEGIN name -->` and `<!-- END name -->`; what is between
them is generated, by the function that `BLOCKS` has for that name. Figures go to docs/figures/.
"""

import io
import re
import sys

from rwkv_lessons.bench.rungs import LADDERS
from rwkv_lessons.bench.source import ROOT
from rwkv_lessons.lab import ladder
from rwkv_lessons.lab.records import CARD, record

MARKERS = re.compile(r"(<!-- BEGIN (\S+) -->\n)(.*?)(<!-- END \2 -->)", re.DOTALL)
FIGURES = "docs/figures"
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
IDENTIFIER = re.compile(r"\b[a-z][0-9a-f]{10}\b")  # matplotlib's: a hash of such numbers
SHIFT = 0.05  # points: what another processor's last digit may move, and nobody can see


def command(check=False, root=ROOT):
    """Writes the blocks and figures that differ; with `check`, exits with a list of them instead.

    Raises:
        ValueError: a block of the README has a name that nobody generates.
    """
    changed = outdated(root)
    if check and changed:
        files = ", ".join(str(file.relative_to(root)) for file in changed)
        sys.exit(f"out of date: {files}; python -m rwkv_lessons.bench readme writes them")
    for file, text in changed.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"written: {file.relative_to(root)}")


def outdated(root=ROOT, folder=None):
    """The files whose text is not what the records give: path → what it should be."""
    readme = root / "README.md"
    if not readme.exists():
        raise ValueError(f"no README.md in {root}")
    wanted = {readme: filled(readme.read_text(encoding="utf-8"), folder)}
    wanted |= {root / name: text for name, text in figures(folder).items()}
    return {file: text for file, text in wanted.items() if not _same(file, text)}


def filled(text, folder=None):
    """`text` with every block generated anew."""

    def block(match):
        begin, name, _, end = match.groups()
        if name not in BLOCKS:
            raise ValueError(f"README has a block {name!r}, needs one of {', '.join(BLOCKS)}")
        return f"{begin}{BLOCKS[name](folder)}\n{end}"

    return MARKERS.sub(block, text)


def figures(folder=None):
    """Path in the repository → SVG."""
    return {f"{FIGURES}/{op}-ladder.svg": _ladder_figure(op, folder) for op in LADDERS}


def _ladder_block(operation):
    def block(folder):
        climbed = ladder.steps(operation, folder=folder)
        first = next((step.ms for step in climbed if step.ms), None)
        rows = []
        for step in climbed:
            row = step.row
            cells = [step.label, _text(step.ms, ".2f"), "–"]
            if step.ms:
                cells[1] += f" ({row.p20_ms:.2f} … {row.p80_ms:.2f})"
                cells[2] = f"{first / step.ms:.1f}"
            cells.append(_text(step.original_ms, ".2f"))
            for name, form in _QUANTITIES.values():
                cells.append(_text(row and getattr(row, name), form))
            rows.append(cells)
        head = ["step", "ms (20 … 80 %)", "faster ×", "CUDA C ms", *_QUANTITIES]
        where = ladder.source(operation, folder=folder).replace("\n", ".\n")
        return f"{_markdown(head, rows)}\n\n{where}."

    return block


def _methods_block(operation, name=None):
    """The methods of one record: of `operation`, or one called `name`, at one shape or several."""

    def block(folder):
        try:
            found = record(name or operation, CARD, folder)
        except LookupError as problem:
            return f"{problem}."
        shapes = {row.shape for row in found.rows}
        rows = [
            [row.method, *_shape_if(len(shapes) > 1, row), row.dtype]
            + [_text(row.median_ms, ".3f"), _text(row.host_ms, ".3f")]
            + [_text(getattr(row, name), form) for name, form in _QUANTITIES.values()]
            + [row.problem or row.note or ""]
            for row in found.rows
        ]
        of_several = ["B, T, H, N"] if len(shapes) > 1 else []
        head = ["method", *of_several, "dtype", "ms", "host ms", *_QUANTITIES, ""]
        B, T, H, N = found.rows[0].shape
        size = "" if of_several else f", B={B} T={T} H={H} N={N}"
        what = f"{ladder.passes(operation)}{size}"
        return f"{_markdown(head, rows)}\n\n{what}. {found.provenance}."

    return block


def _shape_if(wanted, row):
    return [", ".join(map(str, row.shape))] if wanted else []


def _counters_block(folder):
    from rwkv_lessons.lab import counters  # imports torch

    try:
        head, rows, where = counters.table(folder)
    except LookupError as problem:
        return f"{problem}."
    B, T, H, N = counters.SHAPE
    return f"{_markdown(head, rows)}\n\nB={B} T={T} H={H} N={N}. {where}."


_QUANTITIES = {  # heading → field of a row, format
    "GB/s": ("gb_per_s", ".0f"),
    "TFLOP/s": ("tflop_per_s", ".1f"),
    "of roofline": ("roofline_share", ".0%"),
    "registers": ("registers", "d"),
    "local bytes": ("local_bytes", "d"),
    "error": ("error", ".1e"),
}
BLOCKS = {f"{op}-ladder": _ladder_block(op) for op in LADDERS}
BLOCKS |= {op: _methods_block(op) for op in LADDERS}
BLOCKS |= {f"{op}-small": _methods_block(op, f"{op}-small") for op in LADDERS}
BLOCKS["wkv6-peers"] = _methods_block("wkv6", "wkv6-peers")
BLOCKS |= {name: _methods_block("wkv6", name) for name in ("wkv6-decode", "wkv6-first")}
BLOCKS["wkv5-counters"] = _counters_block


def _ladder_figure(operation, folder):
    import matplotlib

    svg = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a notebook or another test has set
        drawn = ladder.figure(operation, folder=folder)
        drawn.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def _same(file, text):
    """Is `text` in `file` already? In a drawing, numbers may differ by what nobody can see."""
    if not file.exists():
        return False
    there = file.read_text(encoding="utf-8")
    if file.suffix != ".svg":
        return there == text
    there, text = (IDENTIFIER.sub("", svg) for svg in (there, text))
    pairs = zip(NUMBER.findall(there), NUMBER.findall(text), strict=False)
    shifts = [abs(float(a) - float(b)) for a, b in pairs]
    return NUMBER.sub("", there) == NUMBER.sub("", text) and max(shifts, default=0) <= SHIFT


def _markdown(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _text(value, form):
    return "–" if value is None else format(value, form)
