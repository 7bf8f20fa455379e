"""The evidence for RWKV-6: its answers agree with other ways to them, and nothing empty passes."""

import numpy as np
import pytest
import torch
from numba import cuda

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.evidence import wkv6 as evidence
from rwkv_lessons.lab.lessons.lesson_09.pictures import dw_errors, rms, running_difference, sweeps
from warplens.cuda import trace

IDS = exercises.ids("08_decay_from_data") + exercises.ids("09_the_backward_pass")
SHAPE = (2, 9, 2, 4)


@cuda.jit
def nothing(*arrays):
    pass


@pytest.mark.parametrize("id", IDS)
def test_an_untouched_output_fails(id):
    result = evaluate(id, nothing)
    assert result.attempted and not result.passed
    assert "elements is ever written" in str(result)


@pytest.mark.parametrize("id", IDS)
def test_zeros_fail(id, monkeypatch):
    monkeypatch.setattr(evidence, "fresh", lambda shape: np.zeros(shape, np.float32))
    row, _ = exercises.load(id).evidence[0](nothing, exercises.load(id))
    assert row.verdict == "FAILED" and "first difference" in row.details[0]


def test_inputs_must_be_left_alone():
    id = "08_decay_from_data.kernel"
    namespace = dict(vars(exercises.solutions("08_decay_from_data")))
    exec(exercises.solved(id) + "\n    v[b, 0, h, j] = 0\n", namespace)
    row, _ = exercises.load(id).evidence[0](namespace["kernel"], exercises.load(id))
    assert "changed its input v" in row.details[0]


@pytest.mark.parametrize("decay", ["text", "strong", "edge"])
def test_the_answers_hold_together(decay):
    """What autograd says obeys the equations of lesson 09."""
    p = evidence.problem(SHAPE, 4, True, decay)
    v_do = (p["v"] * p["do"]).sum(-1, keepdim=True)
    du = (p["r"] * p["k"] * v_do).sum(1)
    torch.testing.assert_close(p["du"], du, rtol=0, atol=1e-12)
    torch.testing.assert_close(p["rdr"], p["r"] * (p["dr"] - p["u"] * p["k"] * v_do))
    # A before the first token of a chunk is A after the last of the one before.
    a = p["a"][:, 2] - p["kdk"][:, 8] + p["rdr"][:, 8]
    torch.testing.assert_close(p["a"][:, 1], a)
    torch.testing.assert_close(p["dw"][:, 8], p["a"][:, 2] - p["kdk"][:, 8])
    start = (p["s0"] * p["ds0"]).sum(-1)
    every = (p["rdr"] - p["kdk"]).sum(1)
    torch.testing.assert_close(start, p["a"][:, -1] + every)
    torch.testing.assert_close(p["states"][:, -1].mT, p["s1"])


@pytest.mark.parametrize("C", [4, 8, 16])
def test_the_three_kernels_make_all_gradients(C):
    lesson = exercises.solutions("09_the_backward_pass")
    launches = (
        (lesson.forward_sweep, ("dr", "rdr", "du", "states"), lesson.launch),
        (lesson.backward_sweep, ("dk", "dv", "kdk", "ds0", "a"), lesson.launch),
        (lesson.decay_gradient, ("dw",), lesson.launch_chunks),
    )
    found = evidence.one_after_another(launches, SHAPE, C)
    assert {"dr", "dk", "dv", "dw", "du", "ds0"} < set(found)
    assert max(found.values()) < 1e-5  # float32 throughout, the tolerance of a check


class OnCPU:
    """A kernel that the lessons' CPU run executes, called as numba's dispatcher is."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, sizes):
        return lambda *arrays: trace.run(self.kernel, *sizes[:2], *arrays)


def test_the_launcher_of_lesson_09(monkeypatch):
    lesson, shape = exercises.solutions("09_the_backward_pass"), (1, 2, 1, 64)
    for name in ("forward_sweep", "backward_sweep", "decay_gradient"):
        monkeypatch.setattr(lesson, name, OnCPU(getattr(lesson, name)))
    monkeypatch.setattr(lesson, "stream", lambda: None)
    p = evidence.problem(shape)
    names = ("r", "k", "v", "w", "u", "s0", "do", "ds1")
    found = lesson.gradients(*(p[x].float() for x in names))
    for name, got in zip(("dr", "dk", "dv", "dw", "du", "ds0"), found, strict=True):
        want = p[name][0] if name == "du" else p[name]
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_checkpoints_stop_the_drift():
    exact = sweeps(256, np.float64)
    np.testing.assert_allclose(running_difference(exact, 256), exact.dw, atol=1e-12)
    assert rms(dw_errors(256)) < rms(dw_errors(256, 16)) < rms(dw_errors(256, 256)) < 1e-5


def test_a_kernel_called_as_an_attribute_is_not_followed_for_ever():
    """As in a notebook with a kernel `shared`, and `cuda.shared.array` in the next one."""
    code = "def shared(x):\n    x.shared(C)\n"
    namespace = {"C": 64, "__name__": "notebook"}
    exec(code, namespace)
    namespace["shared"] = cuda.jit(namespace["shared"])
    function = namespace["shared"].py_func
    assert evidence._names(function, "C", 64) and not evidence._names(function, "C", 32)
