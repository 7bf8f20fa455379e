"""docs/compilers.md has the recorded figures, and two compilers get the same function."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from rwkv_lessons.bench import compiler_times  # noqa: E402
from rwkv_lessons.bench.__main__ import main as bench  # noqa: E402
from rwkv_lessons.bench.commands.matrix import load  # noqa: E402
from rwkv_lessons.bench.machine_code import compilers  # noqa: E402
from rwkv_lessons.bench.machine_code.compile import any_triton  # noqa: E402
from rwkv_lessons.runtime.packages import refuse_wrong_triton  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "compilers.md"


def test_the_page_has_the_recorded_tables():
    columns = json.loads(compilers.TABLE.read_text())
    text = PAGE.read_text(encoding="utf-8")
    for part in compilers.table(columns).split("\n\n"):
        assert part in text
    assert all(x["date"] in text for x in columns)


def test_the_command_says_what_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compilers, "TABLE", tmp_path / "compilers.json")
    column = {"compiler": "A", "ptxas": None, "kernels": {"time-x": [1, 2, 3, 4]}}
    monkeypatch.setattr(compilers, "compiled", lambda package: column)
    bench(["compilers"])
    assert json.loads(compilers.TABLE.read_text()) == [column]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"written: {compilers.TABLE}; ") and "docs/compilers.md" in last
    bench(["compilers", "--table"])
    assert "written" not in capsys.readouterr().out


def test_each_kernel_of_the_table_is_launched_by_the_library():
    rows = load()[1]  # whole and fresh, by a test of its own
    launches = [(row.kernel.split(".")[-1], row.call) for row in rows if "sm_90" in row.found]
    for label, kernel, call, which in compilers.KERNELS:
        assert launches.count((kernel, call)) > which, label


def test_calls_that_triton_compiles_wrong_are_compiled_but_not_made():
    with any_triton():
        refuse_wrong_triton("x", "3.8.0")
    with pytest.raises(RuntimeError, match="compiles x wrong"):
        refuse_wrong_triton("x", "3.8.0")


@pytest.mark.parametrize("label, solution, name", compilers.LADDER)
def test_a_solution_is_a_plain_function_with_the_cuda_that_it_is_given(label, solution, name):
    file = compilers.SOLUTIONS / f"{solution}.py"
    function = compilers._function(file, name, "the cuda", "the type")
    assert function.__globals__["cuda"] == "the cuda" and function.__globals__["N"] == 64
    assert function.__code__.co_filename == str(file)


def test_calls_are_timed_where_they_are_right(monkeypatch):
    call = "right", "wkv6", "doubling", (1, 20, 2, 16)
    monkeypatch.setattr(compiler_times, "LIBRARY", (call,))
    decoded = compiler_times.DECODED[0][1], (2, 70, 3, 32, 16, 16)
    monkeypatch.setattr(compiler_times, "DECODED", (("a step", *decoded),))
    monkeypatch.setattr(compiler_times, "PROMPT", ("a prompt", (1, 20, 2, 16, 32, 16, 16)))
    monkeypatch.setattr(compiler_times, "BUDGET_MS", 1)
    times = compiler_times.of_triton(torch.device("cpu"))
    assert list(times) == ["right", "a step", "a prompt"]
    assert all(ms > 0 and 0 < error < 3e-3 for ms, error in times.values())
    monkeypatch.setattr(compiler_times.mla_prefill, "ours", lambda *x: lambda: x[0] * 2)
    wrong = compiler_times.of_triton(torch.device("cpu"))["a prompt"]
    assert wrong.startswith("relative error") and compilers.time_cell(wrong) == "failed"


def test_times_stand_beside_what_is_compiled():
    ms = {"a": [0.41234, 2e-3], "b": "wrong"}
    columns = [{"compiler": "A", "ptxas": "1", "kernels": {}}]
    columns[0]["timed"] = {"compiler": "A", "ptxas": None, "ms": ms}
    lines = compilers.table(columns).splitlines()
    assert lines[0] == "| milliseconds | A |"
    assert lines[2:] == ["| a | 0.4123 |", "| b | failed |"]
