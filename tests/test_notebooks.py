"""What every notebook keeps to, so that nbval compares what it seems to compare."""

import re

import nbformat
import pytest

from rwkv_lessons.lab import exercises

NOTEBOOKS = sorted(exercises.NOTEBOOKS.glob("*.ipynb"))
HEADINGS = [
    "Where we are",
    "The idea",
    "Predict",
    "Who reads what",
    "Write it",
    "Check",
    "Measure",
    "What the numbers say",
    "Break it",
    "Recap",
]

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def test_executed_in_order(path):
    counts = [cell.execution_count for cell in cells(path)]
    assert counts == list(range(1, len(counts) + 1))  # else nbval skips the comparison


def test_no_errors_and_no_noise(path):
    for cell in cells(path):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text
            assert len(str(output)) < 400_000


def test_markers_are_whole_comments(path):
    for cell in cells(path):
        for line in cell.source.splitlines():
            assert not re.search(r"NBVAL", line), "use a tag: a marker with other text is ignored"


def test_stubs_are_derived(path):
    for cell in cells(path):
        if id := cell.metadata.get("exercise"):
            assert cell.source == exercises.stub(id), f"{id}: run `lessons sync`"


def test_every_exercise_is_there_and_checked(path):
    code = cells(path)
    shown = [cell.metadata["exercise"] for cell in code if "exercise" in cell.metadata]
    checked = [cell.metadata["check"] for cell in code if "check" in cell.metadata]
    has_answers = (exercises.SOLUTIONS / f"{path.stem}.py").exists()
    assert shown == checked == (exercises.ids(path.stem) if has_answers else [])
    for cell in code:
        if id := cell.metadata.get("check"):
            assert re.match(rf'result = check\("{re.escape(id)}", \w+\)', cell.source)


def test_headings_in_order(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    found = re.findall(r"^## (.+)$", text, re.M)
    if path.stem.startswith("00"):
        assert found
    else:
        assert [h for h in found if h in HEADINGS] == HEADINGS


def test_cells_are_short_and_plain(path):
    for cell in cells(path):
        assert not re.search(r"^[!%]|sys\.path|/home/|/root/|/work/|/tmp/", cell.source, re.M)
        if "exercise" not in cell.metadata:
            assert len(cell.source.splitlines()) <= 14, cell.source


def test_starts_with_setup_and_python3(path):
    notebook = nbformat.read(path, 4)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "setup()" in cells(path)[0].source
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_a_hint_can_be_asked_for(path):
    """Lessons say `hint("…")`, and so does a check that failed: the name has to be there."""
    assert any(re.search(r"lab import .*\bhint\b", cell.source) for cell in cells(path))
