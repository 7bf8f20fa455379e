"""Who may import whom: a rule for each room, and no circle inside of any package."""

import ast
import collections
import functools
import graphlib
import re
from unittest.mock import patch

import pytest

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import ROOT

KERNELS = {operation.package for operation in OPERATIONS.values()}
ALONE = {"wkv6", "wkv7", "timex", "mla"}  # operations that import no other one
BELOW = KERNELS | {"sequences", "models", "operations", "runtime", "inputs", "interop", "records"}
# Room → the rooms that it may import. A room may always import itself.
RULES = {
    "runtime": set(),
    "sequences": {"runtime"},
    **dict.fromkeys(KERNELS - ALONE, KERNELS | {"runtime", "sequences"}),
    **dict.fromkeys(ALONE, {"runtime", "sequences"}),
    "inputs": KERNELS,
    "models": KERNELS | {"runtime"},
    "interop": KERNELS | {"runtime", "sequences", "models"},
    "operations": set(),
    "records": {"operations", "runtime"},
    "verify": BELOW,
    "lab": BELOW | {"warplens"},
    "bench": BELOW | {"verify", "warplens"},
    "report": BELOW | {"verify", "lab", "bench", "warplens"},
    "course": {"lab"},
    "solutions": BELOW | {"lab", "warplens"},
    "warplens": set(),
}
SOURCES = "rwkv_lessons", "solutions", "warplens"


def imports(module, text, is_package=False):
    """(line, dotted name as a tuple) of what a module imports of ours, also inside functions."""
    package = module if is_package else module[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [tuple(x.name.split(".")) for x in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base = (*base, *(node.module or "").split(".")) if node.module else base
            names = [(*base, x.name) for x in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name[0] in SOURCES)


def room_of(module):
    """The second name in rwkv_lessons; elsewhere the first."""
    return module[1] if module[0] == "rwkv_lessons" and len(module) > 1 else module[0]


def wrong_imports(module, text, is_package=False):
    """ "module:line: room must not import room; it may import …" for each that breaks a rule."""
    room = room_of(module)
    for line, name in imports(module, text, is_package):
        if (other := room_of(name)) in (room, "rwkv_lessons") or other in RULES[room]:
            continue
        rule = ", ".join(sorted(RULES[room])) or "nothing of the project"
        yield f"{'.'.join(module)}:{line}: {room} must not import {other}; it may import {rule}"


@functools.cache
def sources():
    """{module as a tuple: (its text, whether it is a package)}."""
    found = {}
    for top in SOURCES:
        for file in sorted((ROOT / top).rglob("*.py")):
            module = file.relative_to(ROOT).with_suffix("").parts
            if "tests" in module or "build" in module:
                continue
            is_package = module[-1] == "__init__"
            module = module[:-1] if is_package else module
            found[module] = file.read_text(encoding="utf-8"), is_package
    return found


def circle(package, modules):
    """The names in a circle of imports among what is directly in a package, or None."""
    depth, arrows = len(package), {}
    for module, (text, is_package) in modules.items():
        if module[:depth] != package or len(module) == depth:
            continue
        for _, name in imports(module, text, is_package):
            if name[:depth] == package and len(name) > depth and name[depth] != module[depth]:
                if name[: depth + 1] in modules:
                    arrows.setdefault(module[depth], set()).add(name[depth])
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]


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
    assert {room_of(module) for module in sources()} - {"rwkv_lessons"} == set(RULES)


def test_no_room_imports_one_that_is_built_on_it():
    found = [line for module, read in sources().items() for line in wrong_imports(module, *read)]
    assert not found, "\n".join(found)


PACKAGES = [".".join(module) for module, (_, is_package) in sources().items() if is_package]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_imports_inside_of_a_package(package):
    assert not circle(tuple(package.split(".")), sources())


MOST_FILES = 16  # in a room
LARGER = {
    "rwkv_lessons/runtime": "what every operation may import, flat so that it is found at once",
    "warplens/cuda": "one simulator, of everything that `numba.cuda` offers",
}


def test_a_room_has_16_files_at_most():
    files = [file for top in ("rwkv_lessons", "warplens") for file in (ROOT / top).rglob("*.py")]
    rooms = collections.Counter(str(file.parent.relative_to(ROOT)) for file in files)
    crowded = {room for room, count in rooms.items() if count > MOST_FILES}
    assert len(rooms) > 40 and crowded == LARGER.keys()


def lessons_of(name):
    """{17} of 17_chunked_gradients.py and lesson_17, {10, 11} of lessons_10_11; else nothing."""
    numbers = [int(n) for n in re.findall(r"(?:^|_)(\d\d)(?=_|$)", name)]
    return set(range(numbers[0], numbers[-1] + 1)) if numbers else set()


def test_a_lessons_own_folder_serves_that_lesson_alone():
    places = "notebooks/*.ipynb", "solutions/*.py", "solutions/wrong/*.py"
    used = [(file.stem, file) for place in places for file in ROOT.glob(place)]
    own = (ROOT / "rwkv_lessons/lab/lessons").glob("lesson*/*.py")
    used += [(file.parent.name, file) for file in own]
    found = {
        f"{file.relative_to(ROOT)} needs {folder}"
        for name, file in used
        for folder in re.findall(r"\.(lessons?(?:_\d\d)+)\b", file.read_text(encoding="utf-8"))
        if not lessons_of(name) <= lessons_of(folder)
    }
    assert len(used) > 100 and not found, "\n".join(sorted(found))


def test_a_circle_is_found_also_if_a_function_closes_it():
    modules = {
        ("p",): ("", True),
        ("p", "a"): ("", True),
        ("p", "a", "x"): ("from ..b import y", False),
        ("p", "b"): ("", True),
        ("p", "b", "y"): ("def f():\n    from warplens.cuda import z", False),
    }
    with patch(f"{__name__}.SOURCES", (*SOURCES, "p")):
        assert circle(("p",), modules) is None
        modules["p", "b", "y"] = "def f():\n    from p.a import x", False
        assert sorted(set(circle(("p",), modules))) == ["a", "b"]


@pytest.mark.parametrize(
    "module, text, line, other",
    [
        ("rwkv_lessons.wkv6.step", "\nfrom ..records.schema import Measurement", 2, "records"),
        ("rwkv_lessons.lab.pictures.x", "from ...bench import timing", 1, "bench"),
        ("rwkv_lessons.bench.x", "def f():\n    import rwkv_lessons.lab.x", 2, "lab"),
        ("rwkv_lessons.bench.__main__", "from rwkv_lessons.report import write", 1, "report"),
        ("rwkv_lessons.mla.decode", "from .. import interop", 1, "interop"),
        ("rwkv_lessons.operations.wkv5", "from rwkv_lessons import records", 1, "records"),
        ("rwkv_lessons.wkv7.step", "import warplens.cuda", 1, "warplens"),
        ("warplens.cuda.trace", "from rwkv_lessons.runtime import devices", 1, "runtime"),
        ("solutions.02_x", "from rwkv_lessons.bench.x import y", 1, "bench"),
    ],
)
def test_a_wrong_import_is_named_with_its_line_and_rule(module, text, line, other):
    (found,) = wrong_imports(tuple(module.split(".")), text)
    assert found.startswith(f"{module}:{line}: ")
    assert re.search(rf"must not import {other}; it may import \w", found)


def test_the_drawing_of_the_rooms_has_each_of_them():
    drawing = (ROOT / "docs" / "figures" / "rooms.svg").read_text(encoding="utf-8")
    rooms = {room for room in RULES if (ROOT / "rwkv_lessons" / room).is_dir()} | {"warplens"}
    assert len(rooms) > 12 and not {room for room in rooms if f"{room}/" not in drawing}
