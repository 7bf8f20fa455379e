"""Writes the tables and figures of README.md and docs/ from the records.

A block of a page stands between `<!-- BEGIN name -->` and `<!-- END name -->`; what is between
them is generated, by the function that tables.py has for that name. Figures go to docs/figures/.
"""

import io
import re
import sys

from rwkv_lessons.lab.course import translation
from rwkv_lessons.lab.lessons.lesson_21 import decays
from rwkv_lessons.lab.pictures import ladder
from rwkv_lessons.operations import LADDERS
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report import bars
from rwkv_lessons.report.tables import BLOCKS, RECORDS_OF

MARKERS = re.compile(r"(<!-- BEGIN (\S+) -->\n)(.*?)(<!-- END \2 -->)", re.DOTALL)
FIGURES = "docs/figures"
PAGES = (
    "README.md",
    *(f"README.{language}.md" for language in translation.languages()),
    "docs/results.md",
    *(f"docs/results/{name}.md" for name in RECORDS_OF),
    "docs/kda.md",
    "docs/warplens_model.md",
    "docs/compilers.md",
)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
IDENTIFIER = re.compile(r"\b[a-z][0-9a-f]{10}\b")  # matplotlib's: a hash of such numbers
SHIFT = 0.05  # points: what another processor's last digit may move, and nobody can see


def command(check=False, root=ROOT):
    """Writes the blocks and figures that differ; with `check`, exits with a list of them instead.

    Raises:
        ValueError: a block of a page has a name that nobody generates.
    """
    changed = outdated(root)
    if check and changed:
        files = ", ".join(str(file.relative_to(root)) for file in changed)
        sys.exit(f"out of date: {files}; python -m rwkv_lessons.report writes them")
    for file, text in changed.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"written: {file.relative_to(root)}")


def outdated(root=ROOT, folder=None):
    """The files whose text is not what the records give: path → what it should be."""
    pages = [root / name for name in PAGES if (root / name).exists()]
    if not pages:
        raise ValueError(f"no README.md in {root}")
    texts = {
        page: filled(page.read_text(encoding="utf-8"), folder, _language(page)) for page in pages
    }
    texts |= {root / name: text for name, text in figures(folder).items()}
    return {file: text for file, text in texts.items() if not _same(file, text)}


def _language(page):
    """That of README.zh.md; None for English pages."""
    return page.stem.partition(".")[2] or None


def filled(text, folder=None, language=None):
    """`text` with every block generated anew, its tables in a language."""

    def block(match):
        begin, name, _, end = match.groups()
        if name not in BLOCKS:
            raise ValueError(f"a page has a block {name!r}, needs one of {', '.join(BLOCKS)}")
        table = BLOCKS[name](folder)
        table = translation.texts(language).table(table) if language else table
        return f"{begin}{table}\n{end}"

    return MARKERS.sub(block, text)


def figures(folder=None):
    """Path in the repository → SVG: ladders, times by decay and bars, as far as recorded."""
    recorded = [op for op in LADDERS if ladder.is_recorded(op, folder=folder)]
    drawings = {
        f"{op}-ladder": _svg(lambda op=op: ladder.figure(op, folder=folder)) for op in recorded
    }
    if decays.is_recorded(folder=folder):
        drawings[decays.NAME] = _svg(lambda: decays.time_against_decay(folder=folder).figure)
    for page, charts in bars.CHARTS.items():
        if measured := bars.recorded(charts, folder):
            drawings[f"results-{page}"] = _svg(lambda measured=measured: bars.figure(measured))
    return {f"{FIGURES}/{name}.svg": svg for name, svg in drawings.items()}


def _svg(draw):
    import matplotlib

    svg = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a notebook or another test has set
        draw().savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def _same(file, text):
    """Is `text` in `file` already? In a drawing, numbers may differ by what nobody can see."""
    if not file.exists():
        return False
    stored = file.read_text(encoding="utf-8")
    if file.suffix != ".svg":
        return stored == text
    stored, text = (IDENTIFIER.sub("", svg) for svg in (stored, text))
    pairs = zip(NUMBER.findall(stored), NUMBER.findall(text), strict=False)
    shifts = [abs(float(a) - float(b)) for a, b in pairs]
    return NUMBER.sub("", stored) == NUMBER.sub("", text) and max(shifts, default=0) <= SHIFT
