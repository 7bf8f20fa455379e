"""How pytest and nbval run here: CPU modes, NaN in fresh memory, notebooks in both states."""

import copy
import functools
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
STARTED = pytest.StashKey()

# The inputs are made from a text that comes with Python. Cells with the tag depends-on-python-text
# print numbers that depend on it, and are compared only where it is the text that the notebooks
# were executed with, Python 3.11.7's; tests/course/test_notebooks.py says which those are.
TEXT = "2a95af4ac93f"

os.environ["RWKV_LESSONS_PROGRESS"] = "off"  # a learner's progress is not ours to touch
os.environ.pop("LESSONS_LANG", None)  # outputs are stored in English
os.environ["PYTHONPATH"] = str(ROOT)  # notebooks' kernels inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's `make test &` ignores Ctrl-C, which commands would inherit that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # And this: threads that wait for others would spin, on cores that another worker needs. As many
    # threads as ever: the last digit of a sum depends on how many there are.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser):
    parser.addoption(
        "--solved", action="store_true",
        help="after a notebook as shipped, run with the solutions what these may change of it",
    )  # fmt: skip
    parser.addoption(
        "--lang",
        metavar="LANG",
        help="run the lessons that are translated, and expect this language",
    )
    parser.addoption(
        "--gpu-record", nargs="?", const="", metavar="DIR",
        help="keep how the tests on the GPU went, as DIR/<gpu>/gpu-tests.json or among the records",
    )  # fmt: skip
    parser.addoption(
        "--site", metavar="DIR", help="the website to look at, as `make site` built it"
    )


def pytest_xdist_auto_num_workers(config):
    """With -m gpu: a worker for each core, and for each 5 GB of the GPU that they share."""
    if "gpu" not in (config.getoption("markexpr", "") or "") or not _has_gpu():
        return None
    import torch

    memory = torch.cuda.get_device_properties(0).total_memory
    return max(1, min(os.cpu_count(), int(memory // 5e9), 16))


def pytest_sessionstart(session):
    session.config.stash[STARTED] = time.time()
    if lang := session.config.getoption("--lang"):
        os.environ["LESSONS_LANG"] = lang  # notebooks' kernels inherit it


def pytest_terminal_summary(terminalreporter, config):
    """Says which derived files are old, and keeps how tests on a GPU went.

    With xdist only the process that has all results is asked.
    """
    from tests.support.derived import renewals

    old = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("xfailed", ())]
    for line in renewals(old):
        terminalreporter.line(line)
    _record_gpu_tests(terminalreporter, config)


def _record_gpu_tests(terminalreporter, config):
    folder = config.getoption("--gpu-record")
    if folder is None:
        return
    if not _has_gpu():
        terminalreporter.line("not recorded: no NVIDIA GPU here")
    elif config.getoption("markexpr") != "gpu" or config.getoption("keyword") or _only_some(config):
        terminalreporter.line("not recorded: needs all tests of the GPU, pytest tests -m gpu")
    else:
        from rwkv_lessons.bench import gpu_tests

        seconds = time.time() - config.stash[STARTED]
        file = gpu_tests.save(terminalreporter.stats, seconds, folder=folder or None)
        terminalreporter.line(f"recorded: {file}")


def _only_some(config):
    return [Path(x).resolve() for x in config.args] != [ROOT / "tests"]


def pytest_collectstart(collector):
    if type(collector).__name__ == "IPyNbFile":
        collector.skip_compare += ("text/html", "image/svg+xml", "image/png")


def pytest_collection_modifyitems(config, items):
    from tests.support import derived

    for item in items:
        derived.noted(item)
        cell = getattr(item, "cell", None)
        if cell is None:
            continue
        item.output_timeout = 60  # nbval's own 5 s is too short for two busy cores
        tags = cell.metadata.get("tags", ())
        if "depends-on-gpu" in tags and _has_gpu():
            item.options["check"] = False  # it is timed here
        if "depends-on-python-text" in tags and _text() != TEXT:
            item.options["check"] = False
    if lang := config.getoption("--lang"):
        _translate(items, lang)
    notebooks = _notebooks(items)
    if config.getoption("--solved"):
        notebooks = [[*cells, *_solved(cells)] for cells in notebooks]
    # The last lessons compute most: a worker that begins one at the end is waited for.
    items[:] = [x for x in items if not hasattr(x, "cell")] + sum(reversed(notebooks), [])


def _translate(items, lang):
    """Keeps the cells of translated lessons, and expects of them what their copies show."""
    from rwkv_lessons.lab.commands import translated

    lessons = {path: translated.notebook(path, lang).cells for path in translated.lessons(lang)}
    items[:] = [item for item in items if getattr(item, "path", None) in lessons]
    for item in items:
        code = [cell for cell in lessons[item.path] if cell.cell_type == "code"]
        (item.cell.outputs,) = [cell.outputs for cell in code if cell.id == item.cell.id]


@functools.cache
def _text():
    from rwkv_lessons.inputs import words

    return hashlib.sha256("".join(words()).encode()).hexdigest()[:12]


def _has_gpu():
    import torch

    return torch.cuda.is_available()


def _notebooks(items):
    """The cells of each notebook."""
    by_path = {}
    for item in items:
        if hasattr(item, "cell"):
            by_path.setdefault(item.path, []).append(item)
    return list(by_path.values())


def _solved(cells):
    """Cells to run after these, in the same kernel: solved, and only what may then differ.

    So a learner goes back to an exercise. A kernel of its own would take as long again to start.
    """
    from tests.support.cells import touched

    copies = [
        type(item).from_parent(
            item.parent,
            name=f"{item.name} solved",
            cell_num=item.cell_num,
            cell=copy.deepcopy(item.cell),
            options=item.options.copy(),
        )
        for item in cells
    ]
    exercise = [bool({"exercise", "check"} & item.cell.metadata.keys()) for item in cells]
    for item in copies:
        _solve(item, item.cell)
        item.output_timeout = cells[0].output_timeout
    run = touched([(x.cell.source, e) for x, e in zip(copies, exercise, strict=True)])
    return [item for n, item in enumerate(copies) if n in run]


def _solve(item, cell):
    """The exercise's solution in place of its stub; its check must then pass."""
    from rwkv_lessons.lab.course import exercises

    if id := cell.metadata.get("exercise"):
        cell.source = exercises.solved(id)
    if id := cell.metadata.get("check"):
        item.options["check"] = False  # the stored output is that of the stub
        cell.source += f"\nassert result.passed, 'the solution of {id} fails its own check'"


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs an NVIDIA GPU")
