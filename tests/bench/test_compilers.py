"""docs/compilers.md has the recorded figures, and two compilers get the same function."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
from rwkv_lessons.bench.commands.matrix import load  # noqa: E402
from rwkv_lessons.bench.machine_code import compilers  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "compilers.md"


def test_the_page_has_the_recorded_tables():
    columns = json.loads(compilers.TABLE.read_text())
    text = PAGE.read_text(encoding="utf-8")
    for part in compilers.table(columns).split("\n\n"):
        assert part in text
    assert {x["date"] for x in columns} == {"2026-11-25"} and "Compiled on 2026-11-25" in text


def test_each_kernel_of_the_table_is_launched_by_the_library():
    rows = load()[1]  # whole and fresh, by a test of its own
    launches = [(row.kernel.split(".")[-1], row.call) for row in rows if "sm_90" in row.found]
    for label, kernel, call, which in compilers.KERNELS:
        assert launches.count((kernel, call)) > which, label


@pytest.mark.parametrize("label, solution, name", compilers.LADDER)
def test_a_solution_is_a_plain_function_with_the_cuda_that_it_is_given(label, solution, name):
    file = compilers.SOLUTIONS / f"{solution}.py"
    function = compilers._function(file, name, "the cuda", "the type")
    assert function.__globals__["cuda"] == "the cuda" and function.__globals__["N"] == 64
    assert function.__code__.co_filename == str(file)
