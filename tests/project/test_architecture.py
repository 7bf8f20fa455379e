"""docs/architecture.md says who may import whom; here that is held against every import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rwkv_lessons"
# From the bottom of the picture to its top: a room may import its own floor and those below.
FLOORS = (
    {"runtime"},
    {"wkv5", "wkv6", "mla"},
    {"inputs", "interop", "operations", "ladders", "records"},
    {"verify"},
    {"lab", "course"},
    {"bench"},
    {"report"},
)
KNOWN = {  # (file, room), to be mended
    ("lab/pictures/profiles.py", "bench"),  # reads the profile that bench wrote
    ("bench/__main__.py", "report"),  # its command `readme`
}


def floor(room):
    return next(n for n, rooms in enumerate(FLOORS) if room in rooms)


def room_of(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(file):
    """The rooms of this package that a file imports, wherever in it."""
    folder = ("rwkv_lessons", *file.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [x.name.split(".") for x in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) + 1 - node.level] if node.level else ()
            module = [*start, *(node.module.split(".") if node.module else ())]
            names = [[*module, x.name] for x in node.names]
        yield from (name[1] for name in names if name[0] == "rwkv_lessons" and len(name) > 1)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.name))
def test_imports_point_down(file):
    if file.parent == PACKAGE and file.name == "__init__.py":
        assert not list(imported_rooms(file))
        return
    here = floor(room_of(file))
    up = {room for room in imported_rooms(file) if floor(room) > here}
    where = file.relative_to(PACKAGE).as_posix()
    assert {room for room in up if (where, room) not in KNOWN} == set()


def test_every_room_is_on_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {x.name for x in PACKAGE.iterdir() if x.is_dir() and x.name != "__pycache__"}
    assert {room for room in rooms if f"{room}/" not in page} == set()
