"""What every notebook keeps to, so that nbval compares what it seems to compare."""

import ast
import re

import nbformat
import pytest

from rwkv_lessons.lab.commands import signposts
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.operations import LADDERS

NOTEBOOKS = sorted(exercises.NOTEBOOKS.glob("*.ipynb"))
HEADINGS = [
    "Where we are",
    "The idea",
    "Predict",
    "Memory accesses",
    "Write it",
    "Check",
    "Measure",
    "What the numbers say",
    "Break it",
    "Recap",
]
# Function → the tag of a cell that calls it: what it prints is not the same everywhere.
TAGS = {
    "setup": "nbval-ignore-output",  # it tells of this machine
    "time_here": "depends-on-gpu",  # it measures where there is one; see conftest.py
    # The inputs are made from a text that comes with Python.
    "break_it": "depends-on-python-text",
    "characters": "depends-on-python-text",
    "checkpoints": "depends-on-python-text",
    "curves": "depends-on-python-text",
    "decay_of_a_text": "depends-on-python-text",
    "drift": "depends-on-python-text",
    "dw_errors": "depends-on-python-text",
    "factor_exponents": "depends-on-python-text",
    "reach": "depends-on-python-text",
    "reaching": "depends-on-python-text",
    "usable_chunk_lengths": "depends-on-python-text",
}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def called(cell):
    """The names of the functions that a cell calls."""
    calls = [node.func for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    return {getattr(f, "id", getattr(f, "attr", None)) for f in calls}


@every_notebook
def test_executed_in_order(path):
    counts = [cell.execution_count for cell in cells(path)]
    assert counts == list(range(1, len(counts) + 1))  # else nbval skips the comparison


@every_notebook
def test_no_errors_and_no_noise(path):
    for cell in cells(path):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text
            assert len(str(output)) < 400_000


@every_notebook
def test_markers_are_whole_comments(path):
    for cell in cells(path):
        for line in cell.source.splitlines():
            assert not re.search(r"NBVAL", line), "use a tag: a marker with other text is ignored"


@pytest.mark.derived("exercises in notebooks/", "lessons sync")
@every_notebook
def test_stubs_are_derived(path):
    for cell in cells(path):
        if id := cell.metadata.get("exercise"):
            assert cell.source == exercises.stub(id), f"{id}: run `lessons sync`"


@every_notebook
def test_every_exercise_is_there_and_checked(path):
    code = cells(path)
    shown = [cell.metadata["exercise"] for cell in code if "exercise" in cell.metadata]
    checked = [cell.metadata["check"] for cell in code if "check" in cell.metadata]
    has_answers = (exercises.SOLUTIONS / f"{path.stem}.py").exists()
    assert shown == checked == (exercises.ids(path.stem) if has_answers else [])
    for cell in code:
        if id := cell.metadata.get("check"):
            assert re.match(rf'result = check\("{re.escape(id)}", \w+\)', cell.source)


@every_notebook
def test_headings_in_order(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    found = re.findall(r"^## (.+)$", text, re.M)
    if path.stem.startswith("00"):
        assert found
    else:
        assert [h for h in found if h in HEADINGS] == HEADINGS


@every_notebook
def test_cells_are_short_and_plain(path):
    for cell in cells(path):
        assert not re.search(r"^[!%]|sys\.path|/home/|/root/|/work/|/tmp/", cell.source, re.M)
        if "exercise" not in cell.metadata:
            assert len(cell.source.splitlines()) <= 14, cell.source


@every_notebook
def test_starts_with_setup_and_python3(path):
    notebook = nbformat.read(path, 4)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "setup()" in cells(path)[0].source
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.derived("signposts in notebooks/", "lessons sync")
@every_notebook
def test_the_signposts_are_up(path):
    """The title's number, minutes above each exercise, links to both neighbours at the end."""
    notebook = nbformat.read(path, 4)
    assert not signposts.derive(notebook, path), "run `lessons sync`"
    above = signposts.above_exercises(notebook.cells)
    texts = [id(text) for text, _ in above]
    assert len(set(texts)) == len(texts), "two exercises share a paragraph: whose minutes?"


@every_notebook
def test_formulas_have_single_backslashes(path):
    """Two before a name show as a line break and a word."""
    for cell in cells(path, "markdown"):
        for formula in re.findall(r"\$\$?([^$]+)\$", cell.source):
            assert not re.search(r"\\\\[a-zA-Z,;]", formula), formula


@every_notebook
def test_links_lead_somewhere(path):
    """Seen from work/, too, where learners open their copies: it lies beside notebooks/."""
    for cell in cells(path, "markdown"):
        text = re.sub(r"`[^`]*`", "", cell.source)  # code has brackets, too
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (path.parent / target).exists(), target


LADDER = re.compile(r"(?:ladder|rungs)\(\"(\w+)\"(?:, \"[\w-]+\")?(, measured=True)?\)")


@every_notebook
def test_a_ladder_shows_no_rung_that_is_not_climbed_yet(path):
    """Its own rung after the prediction only, and then in the end."""
    shown = [LADDER.findall(cell.source) for cell in cells(path)]
    lessons = {here for calls in shown for here, _ in calls}
    assert lessons <= {path.stem}
    asked = [n for n, cell in enumerate(cells(path)) if "predict" in called(cell)]
    measured = [n for n, calls in enumerate(shown) for _, own in calls if own]
    assert len(measured) <= 1 and all(n > max(asked) for n in measured)
    on_a_ladder = {rung.stem for ladder in LADDERS.values() for rung in ladder.rungs}
    assert len(measured) == 1 or path.stem not in on_a_ladder, "the rung is never revealed"


@every_notebook
def test_a_hint_can_be_asked_for(path):
    """Lessons say `hint("…")`, and so does a check that failed: the name has to be there."""
    assert any(re.search(r"lab import .*\bhint\b", cell.source) for cell in cells(path))


@every_notebook
def test_cells_that_print_what_is_not_the_same_everywhere_are_tagged(path):
    for cell in cells(path):
        wanted = {TAGS[name] for name in called(cell) & TAGS.keys()}
        tags = set(cell.metadata.get("tags", ()))
        assert wanted <= tags, f"a cell that calls {called(cell) & TAGS.keys()} needs {wanted}"
        ours = {tag for tag in tags if tag.startswith("depends-on-")}
        assert ours <= wanted, f"nothing in this cell asks for {ours - wanted}:\n{cell.source}"


def test_every_function_that_asks_for_a_tag_is_called():
    everywhere = [called(cell) for path in NOTEBOOKS for cell in cells(path)]
    assert set().union(*everywhere) >= TAGS.keys()
