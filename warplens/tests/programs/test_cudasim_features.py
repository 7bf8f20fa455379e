"""docs/warplens_cudasim.md: what it says of every feature is what happens."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warplens

HOME = Path(warplens.__file__).parents[1]
PAGE = HOME / "docs" / "warplens_cudasim.md"
PROGRAM = HOME / "warplens" / "tests" / "helpers" / "cudasim_features.py"
MLIR = os.environ.get("WARPLENS_MLIR_PYTHON")  # a Python that has numba-cuda-mlir, and not numba


def table():
    """{feature: (what warplens does, its error where it refuses)}."""
    rows = re.findall(r"^\| (.+?) \| (yes|refused) \| (.*?) ?\|$", PAGE.read_text("utf-8"), re.M)
    return {name: (how, error) for name, how, error in rows}


def met(python):
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    command = [python, "-W", "ignore", "-m", "warplens", "run", str(PROGRAM)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("python", [sys.executable, MLIR])
def test_every_feature_is_there_or_refused_by_name(python):
    if python is None:
        pytest.skip("WARPLENS_MLIR_PYTHON names no Python with numba-cuda-mlir")
    documented, happened = table(), met(python)
    assert documented.keys() == happened.keys()
    if python == MLIR:
        del happened["`@vectorize(target='cuda')`"]  # of numba
    for name, error in happened.items():
        how, words = documented[name]
        if how == "yes":
            assert error is None, (name, error)
        else:
            assert error and error[0] == "Unsupported" and words.strip("`") in error[1], name
