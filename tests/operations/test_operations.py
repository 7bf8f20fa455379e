"""The table of operations is whole: what an entry names is there, and is found by its name."""

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest
import torch

from rwkv_lessons.bench import methods, peers
from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.measure import in_float64, make_inputs
from rwkv_lessons.operations import LADDERS, OF_LADDER, OPERATIONS, TABLE, operation_of
from rwkv_lessons.operations.checks import ALL_DTYPES
from rwkv_lessons.operations.entries import BOTH, ROOT, Operation, loaded
from rwkv_lessons.operations.work import Work
from rwkv_lessons.report.tables import KINDS
from rwkv_lessons.verify.cases import CHECKED, table

CPU = torch.device("cpu")
CALLED = [operation for operation in TABLE if operation.inputs]  # the others have a command


def name(operation):
    return operation.name


def test_the_table_is_read_without_torch():
    heavy = "{'torch', 'triton', 'numba'} & set(sys.modules)"
    code = f"import sys, rwkv_lessons.operations; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_names_are_given_once():
    assert len(OPERATIONS) == len(TABLE)
    ladders = [ladder for operation in TABLE for ladder in operation.ladders]
    assert len(LADDERS) == len(ladders)
    records = [plan.name for operation in TABLE for plan in operation.records]
    records += [ladder.plan.name for ladder in ladders]
    assert len(set(records)) == len(records)


@pytest.mark.parametrize("operation", TABLE, ids=name)
def test_what_an_entry_names_is_there(operation):
    assert callable(loaded(f"rwkv_lessons.bench.commands.{operation.command}"))
    for function in (operation.inputs, operation.reference, operation.calls):
        assert function is None or callable(loaded(function))
    assert all(callable(getattr(peers, peer.adapter)) for peer in operation.peers.values())
    package = import_module(f"rwkv_lessons.{operation.package}")
    assert all(callable(loaded(function)) for function in operation.functions.values())
    for name in operation.public:
        inner, _, name = f"{operation.package}.{name}".rpartition(".")
        assert hasattr(import_module(f"rwkv_lessons.{inner}"), name)
    for ladder in operation.ladders:
        assert ladder.finished in package.METHODS
        assert all((ROOT / rung.file).is_file() for rung in ladder.rungs)
    assert {plan.table for plan in operation.records} <= {*KINDS, None}
    for shape in (*operation.shapes, operation.quick):
        assert len(shape) == len(operation.letters.split(", "))
        assert operation.work is None or operation.least(shape, "float32").bytes > 0


@pytest.mark.parametrize("operation", TABLE, ids=name)
def test_records_are_found_by_their_names(operation):
    for ladder in operation.ladders:
        assert operation_of(ladder.plan.name) is OF_LADDER[ladder.name] is operation
    for plan in operation.records:
        first = plan.arguments.split()[0]
        if first in OPERATIONS or first == "ladder":
            assert operation_of(plan.name) is operation
    if operation.headline:
        assert operation_of(operation.headline.record) is operation


@pytest.mark.parametrize("package", sorted({operation.package for operation in CALLED}))
def test_every_method_of_the_library_is_measured(package):
    entries = [operation for operation in CALLED if operation.package == package]
    skipped = set.intersection(*[{*operation.skipped} for operation in entries])
    assert not skipped & {*import_module(f"rwkv_lessons.{package}").METHODS}


@pytest.mark.parametrize("operation", CALLED, ids=name)
def test_the_inputs_have_the_shape_that_the_letters_name(operation):
    inputs = make_inputs(operation.name, operation.quick, "float32", CPU)
    assert inputs[operation.like].shape == operation.quick
    expected = in_float64(operation.name, inputs)
    o = expected[0] if isinstance(expected, tuple) else expected
    assert o.dtype == torch.float64 and o.shape == inputs[operation.like].shape


@pytest.mark.parametrize("operation", CALLED, ids=name)
def test_a_new_method_is_timed_and_verified_without_an_entry_of_its_own(operation, monkeypatch):
    package = import_module(f"rwkv_lessons.{operation.package}")
    new = package.METHODS | {"new": package.METHODS["reference"]}
    monkeypatch.setattr(package, "METHODS", new)
    if not (operation.one_token or operation.functions):
        assert "new" in methods.library(operation.name)
    cases = [case for case in table([f"{operation.package} / new"])]
    options = {case.option for case in cases}
    assert {case.dtype for case in cases} == {*ALL_DTYPES}
    assert len(options) > 1 or options == {*CHECKED[operation.package].checks.options}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a quick run on the CPU")
def test_an_entry_is_all_that_the_bench_needs_of_a_new_operation(monkeypatch, capsys):
    """Running sums of a [B, T, C] tensor, which is all its inputs: no letters of RWKV's."""

    def by_steps(x):
        sums = [x[:, 0]]
        for t in range(1, x.shape[1]):
            sums.append(sums[-1] + x[:, t])
        return torch.stack(sums, 1)

    def sums(x):
        return x.cumsum(1)

    def inputs(*shape, dtype, device):
        return (torch.randn(*shape, dtype=dtype, device=device),)

    package = ModuleType("rwkv_lessons.sums")
    package.METHODS = {"reference": by_steps}
    package.sums, package.inputs, package.by_steps = sums, inputs, by_steps
    monkeypatch.setattr(
        methods, "source_of", lambda f: "rwkv_lessons/operations/work.py::Work"
    )  # any code
    monkeypatch.setitem(sys.modules, package.__name__, package)
    forward = Operation(
        "sums",
        "time running sums",
        "sums",
        shapes=((8, 4096, 64),),
        quick=(2, 9, 3),
        work=lambda B, T, C, itemsize: Work(2 * B * T * C * itemsize, B * T * C),
        letters="B, T, C",
        inputs="rwkv_lessons.sums:inputs",
        like=0,
        reference="rwkv_lessons.sums:by_steps",
        dtypes=("float32",),
    )
    for operation in (forward, replace(forward, name="sums-backward", timed=BOTH)):
        monkeypatch.setitem(OPERATIONS, operation.name, operation)
        main([operation.name, "--quick"])
        done = [x for x in capsys.readouterr().out.splitlines() if x.startswith("done")]
        assert len(done) == 2 and all(line.endswith("ms") for line in done)
    with pytest.raises(SystemExit, match="2"):
        main(["sums", "--quick", "--shape", "1,2,3,4"])
    assert "needs 3 positive numbers B, T, C" in capsys.readouterr().err
