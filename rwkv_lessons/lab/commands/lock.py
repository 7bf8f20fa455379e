"""requirements.lock: the releases that the course was tested with, as constraints for pip.

`make setup`, conda, Codespaces and CI take them. To renew it: `make clean setup LOCK=`, which takes
the newest that pyproject.toml allows; `make test`; `make lock`, which is this file's `write`.

All of .venv is in it, except what must differ: NVIDIA's libraries, which each CUDA build of torch
asks for by version, and what needs a later Python than the project does.
"""

import argparse
import importlib.metadata
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..course.exercises import ROOT

FILE = ROOT / "requirements.lock"
HEAD = """\
# The releases that `make test` passed with. Constraints for pip, shared by `make setup`, conda,
# Codespaces and CI. `make lock` writes this file: see CONTRIBUTING.md.
"""


OURS = "rwkv-lessons", "warplens"


def project(folder: Path = ROOT) -> dict:
    """The table [project] of a folder's pyproject.toml."""
    with open(folder / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def requirements(extras: Iterable[str], of_warplens: Iterable[str] = ()) -> list[Requirement]:
    """What both pyproject.toml ask for with these extras, on any system."""
    groups = []
    for table, names in ((project(), extras), (project(ROOT / "warplens"), of_warplens)):
        groups += [table["dependencies"], *(table["optional-dependencies"][x] for x in names)]
    return [Requirement(text) for group in groups for text in group]


def locked() -> dict[str, Version]:
    """The releases in requirements.lock, by canonical name."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(v) for name, v in (x.split("==") for x in lines)}


def lines() -> Iterator[str]:
    """What the installed releases make of requirements.lock."""
    least = project()["requires-python"].removeprefix(">=") + ".0"
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        python = SpecifierSet(distribution.metadata["Requires-Python"] or "")
        nvidia = name.startswith("nvidia-") or name == "cuda-toolkit"
        if name not in ("pip", *OURS) and not nvidia and least in python:
            yield f"{name}=={Version(distribution.version).public}"


def write() -> None:
    FILE.write_text(HEAD + "".join(f"{line}\n" for line in sorted(set(lines()))))


def main(argv=None):
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    write()


if __name__ == "__main__":
    main()
