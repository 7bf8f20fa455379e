"""Launches of a call: at once, or together if their kind is new; descriptions, encoded once."""

import types

import pytest
import torch
import triton

from rwkv_lessons.runtime import compile_triton, launch_tiles
from rwkv_lessons.runtime.bounded import Table
from rwkv_lessons.runtime.compile_triton import Launches
from rwkv_lessons.wkv6.chunked.hopper import tiles as hopper


@triton.runtime.JITFunction  # as outside of the interpreter
def some_kernel(x):
    pass


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, call by call."""
    found = []
    monkeypatch.setattr(compile_triton, "_compiled", set())
    monkeypatch.setattr(
        compile_triton, "compile_together", lambda kind, all: found.append([x[3] for x in all])
    )
    return found


def given(x):
    return some_kernel, 1, 4, (x,), (), ()


def test_of_a_new_kind_all_are_compiled_before_the_first(compiled):
    done, run = [], Launches("kind")
    run(lambda kernel, grid, warps, tensors, *_: done.append(tensors), *given("a"))
    run.then(done.append, "between")
    run(lambda kernel, grid, warps, tensors, *_: done.append(tensors), *given("b"))
    assert not done and not compiled
    run.finish(lambda: [(*given("backward"), {})])
    assert compiled == [[("a",), ("b",), ("backward",)]]
    assert done == [("a",), "between", ("b",)]


def test_of_a_known_kind_each_is_launched_at_once(compiled):
    compile_triton._compiled.add("kind")
    done, run = [], Launches("kind")
    run(lambda *_: done.append("a"), *given("a"))
    assert done == ["a"]
    run.then(done.append, "then")
    assert done == ["a", "then"]
    run.finish(pytest.fail)
    assert not compiled


@pytest.mark.parametrize("known", [True, False])
def test_ahead_nothing_is_launched(known, compiled):
    if known:
        compile_triton._compiled.add("kind")
    run = Launches("kind", ahead=True)
    run(pytest.fail, *given("a"), maxnreg=128)
    run.then(pytest.fail)
    run.finish()
    assert run.kernels == [(*given("a"), {"maxnreg": 128})] and not compiled


def test_without_memory_for_what_comes_later_the_rest_is_launched(compiled):
    def later():
        raise torch.OutOfMemoryError

    done, run = [], Launches("kind")
    run(lambda *_: done.append("a"), *given("a"))
    run.finish(later)
    assert done == ["a"] and compiled == [[("a",)]]


class Triton:
    """As much of a compiled kernel as launching tiles takes: what it gets, and what it encodes."""

    def __init__(self, monkeypatch):
        self.got, self.encoded = [], 0
        self.function, self.packed_metadata = 1, (4, 1, 0)

        def launcher(*given):
            self.got.append(given[9:])

        def launch(*given):
            self.got.append(given[9:])  # as Triton's own, that encodes at each launch
            return launcher

        class Run:
            def __call__(self, *given):
                self.launch(*given)

        self.run = Run()
        self.run.launch = launch
        self.metadata = types.SimpleNamespace(tensordesc_meta=["of 64 rows", "of 32 rows"])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
        monkeypatch.setattr(launch_tiles, "make_tensordesc_arg", self.encode)
        for name in ("machine_code", "_metadata", "encoded"):
            monkeypatch.setattr(launch_tiles, name, {})

    def __getitem__(self, grid):
        return lambda *given, **options: self

    def encode(self, described, metadata):
        self.encoded += 1
        return [(metadata, described.base.data_ptr()), *described.shape, *described.strides]


def test_descriptions_are_encoded_once_an_address(monkeypatch):
    kernel, x = Triton(monkeypatch), torch.zeros(256, 64, dtype=torch.bfloat16)

    def launch(x):
        both = hopper.tiles(x, 64), hopper.tiles(x[:128], 64, 32)
        launch_tiles.launch_tiles(kernel, (1, 1, 1), 4, (*both, None, x), (5,), (True,))
        return kernel.got[-1] if kernel.got else None

    launch(x)  # is compiled, and launched by Triton
    assert not kernel.got
    at = x.data_ptr()
    wanted = ("of 64 rows", at), 256, 64, 64, 1, ("of 32 rows", at), 128, 64, 64, 1
    assert launch(x) == (*wanted, None, at, 5, True)
    assert launch(x) == (*wanted, None, at, 5, True)
    assert kernel.encoded == 2
    y = torch.zeros_like(x)
    assert launch(y)[0] == ("of 64 rows", y.data_ptr()) and kernel.encoded == 4
    # another shape at an address that was known
    assert launch(x[:128])[1] == 128


def test_only_so_many_descriptions_are_kept(monkeypatch):
    kernel = Triton(monkeypatch)
    monkeypatch.setattr(launch_tiles, "encoded", Table(3))
    kept = [torch.zeros(64, 64, dtype=torch.bfloat16) for _ in range(9)]
    for x in kept:
        tiles = hopper.tiles(x, 64), hopper.tiles(x, 64, 32)
        launch_tiles.launch_tiles(kernel, (1, 1, 1), 4, tiles, (), ())
    assert len(launch_tiles.encoded) <= 3


def test_a_launcher_of_another_triton_gets_the_descriptions_themselves(monkeypatch):
    kernel, x = Triton(monkeypatch), torch.zeros(64, 64, dtype=torch.bfloat16)
    kernel.run.launch = lambda *given: kernel.got.append(given[9:])
    tiles = hopper.tiles(x, 64), hopper.tiles(x, 64, 32)
    for _ in range(3):
        launch_tiles.launch_tiles(kernel, (1, 1, 1), 4, tiles, (), ())
    assert kernel.encoded == 0
    assert [list(got) for got in kernel.got] == [list(tiles)] * 2
