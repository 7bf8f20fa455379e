"""Who may import whom: one rule for each room of the package, and one for solutions/."""

import ast
import re
from pathlib import Path

import pytest

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import ROOT

KERNELS = {operation.package for operation in OPERATIONS.values()}
BELOW = KERNELS | {"models", "operations", "runtime", "inputs", "interop", "records"}
# Room → the rooms that it may import. A room may always import itself.
RULES = {
    "runtime": set(),
    **dict.fromkeys(KERNELS, KERNELS | {"runtime"}),
    "inputs": KERNELS,
    "models": KERNELS | {"runtime"},
    "interop": KERNELS | {"runtime"},
    "operations": set(),
    "records": {"operations", "runtime"},
    "verify": BELOW,
    "lab": BELOW,
    "bench": BELOW | {"verify"},
    "report": BELOW | {"verify", "lab", "bench"},
    "course": {"lab"},
    "solutions": BELOW | {"lab"},
}
# The command line names every command of the project, and `readme` is report's.
ALLOWED = {("rwkv_lessons/bench/__main__.py", "report")}


def imports(file, text):
    """(line, room) of every module of the package that a file imports, also inside functions."""
    folder = Path(file).parts[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [x.name.split(".") for x in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else ()
            base = [*base, *(node.module or "").split(".")] if node.module else list(base)
            names = [[*base, x.name] for x in node.names]
        else:
            continue
        for name in names:
            if name[0] == "rwkv_lessons" and len(name) > 1:
                yield node.lineno, name[1]


def room_of(file):
    first, second, *_ = (*Path(file).with_suffix("").parts, "")
    return second if first == "rwkv_lessons" else first


def wrong_imports(file, text):
    """ "file:line: room must not import room; it may import …" for each that breaks a rule."""
    room = room_of(file)
    for line, other in imports(file, text):
        if other == room or other in RULES[room] or (file, other) in ALLOWED:
            continue
        rule = ", ".join(sorted(RULES[room])) or "nothing of the package"
        yield f"{file}:{line}: {room} must not import {other}; it may import {rule}"


def sources():
    for folder in ("rwkv_lessons", "solutions"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")


def test_tests_are_collected_where_no_notebook_can_run():
    """On a machine with a GPU, without what Jupyter's kernels need, the others still run."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "tests").rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(x.name for x in node.names)]
        if name and name.split(".")[0] in ("IPython", "jupyter_client", "nbclient", "nbval", "zmq")
    ]
    assert not found, "import these in the tests that use them: " + ", ".join(found)


def test_every_room_has_a_rule():
    rooms = {room_of(file) for file, _ in sources()} - {"__init__"}
    assert rooms == set(RULES)


def test_no_room_imports_one_that_is_built_on_it():
    found = [line for file, text in sources() for line in wrong_imports(file, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "file, text, line, other",
    [
        ("rwkv_lessons/wkv6/step.py", "\nfrom ..records.schema import Measurement", 2, "records"),
        ("rwkv_lessons/lab/pictures/x.py", "from ...bench import timing", 1, "bench"),
        ("rwkv_lessons/bench/x.py", "def f():\n    import rwkv_lessons.lab.x", 2, "lab"),
        ("rwkv_lessons/mla/__init__.py", "from .. import interop", 1, "interop"),
        ("rwkv_lessons/operations/__init__.py", "from rwkv_lessons import records", 1, "records"),
        ("solutions/02_x.py", "from rwkv_lessons.bench.x import y", 1, "bench"),
    ],
)
def test_a_wrong_import_is_named_with_its_line_and_rule(file, text, line, other):
    (found,) = wrong_imports(file, text)
    assert found.startswith(f"{file}:{line}: ")
    assert re.search(rf"must not import {other}; it may import \w", found)
