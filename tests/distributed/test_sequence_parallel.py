"""A sequence on two processes is what it is on one: o, states and gradients, with every option."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from support.two_ranks import CASES, LIMIT_S, inputs_of, relative_errors
from torch.distributed.device_mesh import init_device_mesh

from rwkv_lessons.distributed import sequence_parallel, split_tokens
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.wkv6 import wkv6

# Float32 sums of a hundred terms, measured: up to 7e-7. In bfloat16 results are rounded once, to
# 1.7e-3, and o of the second rank twice. float64 has its own reference's rounding.
LIMITS = {torch.float32: 3e-6, torch.bfloat16: 4e-3, torch.float64: 3e-15}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder where two processes with gloo left their results."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "support.two_ranks", folder]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""}
    started = [
        subprocess.Popen(
            [*command, str(n), "2"], env=environment, stderr=subprocess.PIPE, text=True
        )
        for n in range(2)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return folder


@pytest.fixture(scope="module")
def results(two_ranks):
    return [torch.load(two_ranks / f"rank{n}.pt") for n in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_agree_with_one_process(results, name):
    case = CASES[name]
    errors = relative_errors(case, [found[name] for found in results])
    too_large = {x: e for x, e in errors.items() if not e < LIMITS[case.dtype]}
    assert not too_large


def test_a_rank_that_is_late_or_gone_is_an_error_in_bounded_time(two_ranks):
    (late, waited), (gone, until_gone) = torch.load(two_ranks / "said.pt")
    assert "rank 0 of 2" in late and "not there within 1 s" in late
    assert 0.9 < waited < 30  # its limit was 1 s; more is the machine's
    assert "another rank of the group has ended" in gone and until_gone < 60


@pytest.fixture
def alone():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_rank_alone_has_the_whole_sequence(alone):
    given, s0, _, _ = inputs_of(CASES["wkv6 decay 1"])
    expected = wkv6(*given, s0)
    for group in (None, init_device_mesh("cpu", (1,))):
        o, s1 = sequence_parallel(wkv6, group)(*given, s0)
        assert torch.equal(o, expected[0]) and torch.equal(s1, expected[1])


def test_wrong_arguments_are_named(alone):
    case = CASES["wkv6 one sequence, packed"]
    given, s0, _, _ = inputs_of(case)
    mix = sequence_parallel(wkv6)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 .* tokens 0 to 39"):
        mix(*given, cu_seqlens=torch.tensor([0, 30]))
    with pytest.raises(ValueError, match=r"s0 must be \[S, H, K, V\]"):
        mix(*given, torch.cat([s0, s0]), cu_seqlens=torch.tensor([0, 40]))
    with pytest.raises(TypeError, match="needs r, k, v, w, u and, if any, s0: got 3"):
        mix(*given[:3])
    with pytest.raises(TypeError, match="k must have r's dtype"):  # the operation's own words
        mix(given[0], given[1].double(), *given[2:])


def test_second_gradients_are_refused(alone):
    given, _, _, _ = inputs_of(CASES["wkv6 decay 1"])
    leaves = [x.requires_grad_() for x in given]
    o, _ = sequence_parallel(wkv6)(*leaves)
    (dr,) = torch.autograd.grad(o.square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dr.sum(), leaves)


def test_another_operation_is_refused():
    with pytest.raises(TypeError, match="wkv6, wkv7"):
        sequence_parallel(torch.add)


def test_tokens_are_shared_out_whole():
    assert split_tokens(10, 3) == [3, 4, 3]
    assert split_tokens(1000, 2, first=1.5) == [600, 400]
    assert split_tokens(3, 3, first=9.0) == [1, 1, 1]
    with pytest.raises(ValueError, match="at least 3"):
        split_tokens(2, 3)
