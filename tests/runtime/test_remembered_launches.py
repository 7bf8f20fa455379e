"""Launches are remembered where Triton has the parts that are known, and nobody says no."""

import subprocess
import sys
import types

import pytest
import torch

triton = pytest.importorskip("triton")
from rwkv_lessons.runtime import launch_triton, remembered_launches  # noqa: E402
from rwkv_lessons.runtime.remembered_launches import (  # noqa: E402
    VARIABLE,
    UnknownTriton,
    may_remember,
)


@triton.runtime.JITFunction
def kernel(x):
    pass


class Launched:
    """A kernel of Triton's that is compiled, and counts its launches by Triton and without it."""

    def __init__(self, monkeypatch):
        self.by_triton = self.directly = 0
        made = types.SimpleNamespace(run=self.run, function=1, packed_metadata=())
        monkeypatch.setattr(triton.runtime.JITFunction, "__getitem__", lambda *_: self.launch(made))
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda n: 0, raising=False)
        monkeypatch.setattr(launch_triton, "machine_code", {})

    def launch(self, made):
        self.by_triton += 1
        return lambda *given, **options: made

    def run(self, *given):
        self.directly += 1


@pytest.mark.parametrize("remembers", [True, False])
def test_a_launch_is_made_by_triton_once_or_always(remembers, monkeypatch):
    launched = Launched(monkeypatch)
    monkeypatch.setattr(launch_triton, "REMEMBERS", remembers)
    results = [launch_triton.launch(kernel, 1, 4, (torch.zeros(4),), (), ()) for _ in range(3)]
    assert (launched.by_triton, launched.directly) == ((1, 2) if remembers else (3, 0))
    assert remembers or results == [None] * 3  # so that a `Replay` remembers nothing either


def test_a_variable_turns_it_off(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert may_remember()
    monkeypatch.setenv(VARIABLE, "0")
    assert not may_remember()


def new_launcher(self, gridX, gridY, gridZ, stream, cluster, function, *args):
    pass


def launcher_of_3_6(self, gridX, gridY, gridZ, stream, function, *args):
    pass


def test_an_unknown_triton_launches_itself_with_a_warning(monkeypatch):
    driver = remembered_launches.driver
    monkeypatch.setattr(driver.CudaLauncher, "__call__", new_launcher)
    with pytest.warns(UnknownTriton, match=r"CudaLauncher.__call__\(self, .* cluster, "):
        assert not may_remember()
    monkeypatch.setattr(driver.CudaLauncher, "__call__", launcher_of_3_6)
    for name, known in (("iiiKKppOOOOOO", True), ("iiiKKOOOO", False)):
        monkeypatch.setattr(driver, "_BASE_ARGS_FORMAT", name, raising=False)
        assert bool(list(remembered_launches.unknown())) != known


def test_a_kernel_without_its_parts_is_unknown(monkeypatch):
    monkeypatch.setattr(
        remembered_launches,
        "CompiledKernel",
        type("Kernel", (), {"run": 1, "__init__": new_launcher}),
    )
    assert list(remembered_launches.unknown()) == [
        "CompiledKernel.function",
        "CompiledKernel.packed_metadata",
    ]


def of_3_7(arg, metadata):
    return [arg, metadata]


def of_3_8(arg, metadata, _):
    return [arg, metadata]


def of_another(arg, metadata, cluster):
    return [arg, metadata]


@pytest.mark.parametrize("encode, known", [(of_3_7, True), (of_3_8, True), (of_another, False)])
def test_tiles_are_encoded_as_this_triton_does_it(monkeypatch, encode, known):
    monkeypatch.setattr(remembered_launches.driver, "make_tensordesc_arg", encode)
    encoder = remembered_launches.tile_encoder()
    assert (encoder is not None) == known
    assert ("triton's make_tensordesc_arg" in remembered_launches.unknown()) != known
    assert not known or encoder(1, 2) == [1, 2]


def test_a_triton_that_does_not_encode_tiles_for_others_is_unknown_and_no_import_fails():
    code = """
import warnings
from triton.backends.nvidia import driver
del driver.make_tensordesc_arg
with warnings.catch_warnings(record=True) as said:
    from rwkv_lessons.runtime import remembered_launches, replay
assert "make_tensordesc_arg" in str(said[-1].message) and not remembered_launches.REMEMBERS
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
