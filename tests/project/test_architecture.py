"""docs/architecture.md names every room of the package, and a name means one thing in all of them.

Who imports whom: test_arrows.py.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rwkv_lessons"


def test_every_room_is_on_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {x.name for x in PACKAGE.iterdir() if x.is_dir() and x.name != "__pycache__"}
    assert {room for room in rooms if f"{room}/" not in page} == set()


def definitions(kind):
    """{name: files} of what is defined in both packages, at any depth."""
    places = {}
    for package in (PACKAGE, ROOT / "warplens"):
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(ROOT).parts
            if not {"tests", "build"} & set(parts):
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                    if isinstance(node, kind):
                        places.setdefault(node.name, []).append("/".join(parts))
    return places


# A name that two modules share on purpose → why.
SHARED = {"Carry": "distributed/parallel.py takes either one's: the protocol is the same"}


def test_a_class_name_is_the_name_of_one_class():
    classes = definitions(ast.ClassDef)
    twice = {name: files for name, files in classes.items() if len(files) > 1}
    assert len(classes) > 200 and twice.keys() == SHARED.keys(), twice


@pytest.mark.parametrize("name", ["fingerprint", "explained", "compare"])
def test_what_there_is_one_of_is_defined_once(name):
    assert len(definitions(ast.FunctionDef)[name]) == 1
