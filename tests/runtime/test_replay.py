"""What a call launched, launched again for other tensors."""

import gc
import types
import weakref

import pytest
import torch

from rwkv_lessons.runtime import launch_tiles, replay
from rwkv_lessons.runtime.bounded import Table
from rwkv_lessons.runtime.compile_triton import Launches
from rwkv_lessons.wkv6.chunked.hopper.tiles import tiles

got = []


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """What launches got lately; nothing is known yet."""
    monkeypatch.setattr(replay, "_known", {})
    monkeypatch.setattr(launch_tiles, "encoded", {})
    monkeypatch.setattr(launch_tiles, "_metadata", {(64, 64, torch.bfloat16): "of 64 rows"})
    monkeypatch.setattr(
        launch_tiles, "make_tensordesc_arg", lambda x, kind: [(kind, x.base.data_ptr()), *x.shape]
    )
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    got.clear()
    return got


def launch(kernel, *_):
    """As `launch_triton.launch` of a kernel that is compiled."""
    return lambda *given: got.append((kernel, *given)), "code", "metadata"


def compiled(*_):
    """The same of one that was not."""


def call(x, y, known, launch=launch, copies=False, constant=None):
    """A call of two kernels, with two results, a description and scratch of two kinds."""
    run = Launches("kind")
    run.waiting = None
    few, many = run.empty((3,), x.device), run.empty((1000,), x.device, torch.bfloat16)
    o, s = torch.empty_like(x), torch.empty(5)
    used = y.clone() if copies else y
    run(launch, "first", 10, 4, (x, None, few, many), (1, 2.5), (True,))
    run(launch, "second", (2, 3, 4), 4, (tiles(x, 64), used, many, few, o, s, constant), (6,), ())
    constants = () if constant is None else (constant,)
    replay.remember(known, run, (x, y), (o, s), constants)


def some(tokens=64):
    return torch.zeros(tokens, 64, dtype=torch.bfloat16), torch.zeros(8)


def test_other_tensors_take_their_places():
    call(*some(), "a")
    (x, y), again = some(), replay.replay("a")
    o, s = again((x, y))
    (first, second), at = got, torch.Tensor.data_ptr
    few, many = first[-5:-3]
    assert first == (
        "first", 10, 1, 1, 7, "code", "metadata", None, None, None,
        at(x), None, few, many, 1, 2.5, True,
    )  # fmt: skip
    assert second == (
        "second", 2, 3, 4, 7, "code", "metadata", None, None, None,
        ("of 64 rows", at(x)), 64, 64, at(y), many, few, at(o), at(s), None, 6,
    )  # fmt: skip
    assert few % 64 == many % 64 == 0 and abs(many - few) >= (12 if few < many else 2000)
    assert (o.shape, o.dtype, s.shape, s.dtype) == (x.shape, x.dtype, (5,), torch.float32)
    assert o.data_ptr() != s.data_ptr() and again((x, y))[0].data_ptr() != o.data_ptr()


def test_constants_stay_and_nothing_else_is_kept():
    x, y = some()
    constant = torch.ones(4)
    call(x, y, "a", constant=constant)
    watched, address = [weakref.ref(x), weakref.ref(y)], constant.data_ptr()
    del x, y, constant
    gc.collect()
    assert [seen() for seen in watched] == [None, None]
    replay.replay("a")(some())
    assert got[-1][-2] == address


@pytest.mark.parametrize("how", [{"copies": True}, {"launch": compiled}, {"same": True}])
def test_what_cannot_be_launched_again_is_not_kept(how):
    x, y = some()
    y = x if how.pop("same", False) else y
    call(x, y, "a", **how)
    assert replay.replay("a") is None


def test_a_step_of_another_kind_is_not_launched_again():
    x, y = some()
    run = Launches("kind")
    run.waiting = None
    run(launch, "first", 10, 4, (x,), (), ())
    run.then(got.append, "step")
    replay.remember("a", run, (x, y), ())
    assert replay.replay("a") is None


def test_looks_tell_what_chooses_launches():
    x, y = some()
    usual = replay.looks((x, None, y), 1.0)
    assert usual == replay.looks((torch.ones_like(x), None, y), 1.0) is not None
    others = [
        replay.looks((x, None, y), 0.5),
        replay.looks((x, y, y), 1.0),
        replay.looks((x.float(), None, y), 1.0),
        replay.looks((x[:32], None, y), 1.0),
        replay.looks((x.view(128, 32), None, y), 1.0),
        replay.looks((x.to("meta"), None, y), 1.0),
    ]
    assert len({usual, *others}) == 7
    assert replay.looks((x.T, None, y), 1.0) is None
    assert replay.looks((x, None, y[1:]), 1.0) is None  # 4 bytes further
    assert replay.replay(None) is None


def test_only_so_many_calls_are_kept(monkeypatch):
    monkeypatch.setattr(replay, "_known", Table(2))
    for n in range(7):
        call(*some(), n)
    assert len(replay._known) <= 2 and replay.replay(6)


def test_no_launches_are_no_call():
    replay.remember("a", types.SimpleNamespace(ran=[]), some(), ())
    assert replay.replay("a") is None
