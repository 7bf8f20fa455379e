"""A sequence on many processes is what it is on one: o, states and gradients, with every option."""

import contextlib
import functools
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from support.rank_cases import CASES, GPU_CASES, inputs_of, relative_errors
from support.ranks import LIMIT_S
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh

from rwkv_lessons.bench.commands.sequence_parallel import OPERATIONS
from rwkv_lessons.distributed import (
    maps,
    parallel,
    rwkv7,
    sequence_parallel,
    split_tokens,
    twice,
)
from rwkv_lessons.distributed.parallel import ParallelCall
from rwkv_lessons.distributed.pieces import pieces_of
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.wkv5 import wkv5
from rwkv_lessons.wkv6 import wkv6, wkv6_step
from rwkv_lessons.wkv7 import wkv7

# Float32 sums of a hundred terms, measured: up to 7e-7. In bfloat16 results are rounded once, to
# 1.7e-3, and o of the second rank twice. float64 has its own reference's rounding.
LIMITS = {torch.float32: 3e-6, torch.bfloat16: 4e-3, torch.float64: 3e-15}
# On a GPU three products of TF32 for each of float32; of two blocks o is rounded three times.
LIMITS_GPU = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def run_ranks(folder, ranks, backend="gloo", **environment):
    """What each of the processes left in the folder."""
    command = [sys.executable, "-m", "support.ranks", folder]
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    started = [
        subprocess.Popen(
            [*command, str(n), str(ranks), backend],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(said)
    return [torch.load(folder / f"rank{n}.pt") for n in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder, tmp_path_factory):
    """What processes with gloo left, by how many they were."""
    three = tmp_path_factory.mktemp("three")
    return {2: run_ranks(folder, 2, PATH=""), 3: run_ranks(three, 3, PATH="")}


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    """What two processes left that have a GPU each."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return run_ranks(tmp_path_factory.mktemp("gpus"), 2, "nccl", **os.environ)


def check(case, name, found, limits, device="cpu"):
    errors = relative_errors(case, [x["results"][name] for x in found], device)
    too_large = {x: e for x, e in errors.items() if not e < limits[case.dtype]}
    assert not too_large


@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_with_one_process(ranks, name):
    check(CASES[name], name, ranks[len(CASES[name].parts)], LIMITS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [x for x in GPU_CASES if len(GPU_CASES[x].parts) == 2])
def test_two_gpus_agree_with_one_process(gpus, name):
    check(GPU_CASES[name], name, gpus, LIMITS_GPU, "cuda")


def check_refusals(found):
    """Each rank is told the same, by the name of what is not the same."""
    for name, message in found[0]["refused"].items():
        assert message and message.startswith(name) and " must " in message
        assert all(x["refused"][name] == message for x in found)


def test_ranks_that_do_not_make_the_same_call_are_all_told_so(ranks):
    check_refusals(ranks[2])
    check_refusals(ranks[3])
    said = ranks[3][0]["refused"]
    assert "got [1, 2, 1] on ranks 0, 1" in said["B"]
    assert "start must be 5 on rank 1, " in said["start"] and "got 0" in said["start"]


@pytest.mark.gpu
def test_gpus_that_do_not_make_the_same_call_are_all_told_so(gpus):
    check_refusals(gpus)


def test_checkpoints_free_what_they_compute_again(ranks):
    for found in ranks[2]:
        assert found["kept"] == {"wkv6": [False] * 5, "wkv7": [False] * 6}


@pytest.mark.gpu
def test_checkpoints_on_gpus_free_what_they_compute_again(gpus):
    test_checkpoints_free_what_they_compute_again({2: gpus})


def test_a_rank_outside_of_the_group_is_told_so(ranks):
    inside, outside = (found["outside"] for found in ranks[2])
    assert inside is None
    assert "group must contain this process, got one without global rank 1" in outside


def test_a_rank_that_is_late_or_gone_is_an_error_in_bounded_time(ranks, folder):
    (late, waited), (gone, until_gone) = torch.load(folder / "said.pt")
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
    with pytest.raises(ValueError, match="cu_seqlens must increase from 0 to 40, .* got .0, 30"):
        mix(*given, cu_seqlens=torch.tensor([0, 30]))
    with pytest.raises(ValueError, match=r"s0 must be \[S, H, K, V\]"):
        mix(*given, torch.cat([s0, s0]), cu_seqlens=torch.tensor([0, 40]))
    with pytest.raises(TypeError, match="missing a required argument: 'w'"):
        mix(*given[:3])
    with pytest.raises(TypeError, match="k must have r's dtype"):  # the operation's own words
        mix(given[0], given[1].double(), *given[2:])


def test_a_default_is_the_same_whether_it_is_given_or_not(alone, monkeypatch):
    given, _, _, _ = inputs_of(CASES["wkv6 decay 1"])
    seen = []
    monkeypatch.setattr(parallel, "tokens_of_ranks", lambda *x: seen.append(x[3]["options"]))
    mix = sequence_parallel(wkv6)
    for options in ({}, {"scale": 1}, {"scale": 1.0, "raw_decay": False}):
        mix(*given, **options)
    assert seen == [seen[0]] * 3 and repr(seen[1]) == repr(seen[0])


def test_kernels_are_launched_on_the_device_of_the_tensors(alone, monkeypatch):
    """It need not be torch's current one."""
    now, seen, apply = [], [], parallel.SequenceParallel.apply

    @contextlib.contextmanager
    def on(device):
        now.append(device)
        yield
        now.clear()

    def look(*given):
        seen.extend(now)
        return apply(*given)

    monkeypatch.setattr(parallel, "on", on, raising=False)
    monkeypatch.setattr(parallel.SequenceParallel, "apply", look)
    given, _, _, _ = inputs_of(CASES["wkv6 decay 1"])
    sequence_parallel(wkv6)(*given)
    assert seen == [given[0].device]


def test_second_gradients_are_refused(alone):
    given, _, _, _ = inputs_of(CASES["wkv6 decay 1"])
    leaves = [x.requires_grad_() for x in given]
    o, _ = sequence_parallel(wkv6)(*leaves)
    (dr,) = torch.autograd.grad(o.square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dr.sum(), leaves)


@pytest.mark.parametrize("learns", [False, True])
def test_tangents_of_forward_mode_are_an_error_and_not_lost(alone, learns):
    given, s0, _, _ = inputs_of(CASES["wkv6 decay 1"])
    for n, x in enumerate((*given, s0)):
        tensors = [y.clone().requires_grad_(learns) for y in (*given, s0)]
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode"):
            tensors[n] = forward_ad.make_dual(tensors[n], torch.ones_like(x))
            sequence_parallel(wkv6)(*tensors)


def test_without_a_process_group_the_call_that_makes_one_is_named():
    with pytest.raises(ValueError, match="sequence_parallel .* call init_process_group first"):
        sequence_parallel(wkv6)


def test_what_a_backend_says_is_told_without_the_places_in_its_sources():
    problem = RuntimeError("[/a/pair.cc:538] Connection closed by peer [127.0.0.1]:4071")
    assert maps.of_backend(problem) == "Connection closed by peer [127.0.0.1]:4071"


def of_somebody_else(r, k, v, w, u, s0=None, *, cu_seqlens=None, scale=1.0, raw_decay=False):
    """What it does with w cannot be known, so its map cannot, either."""


OTHERS = torch.add, wkv5, functools.partial(wkv5), of_somebody_else, wkv6_step


@pytest.mark.parametrize("operation", [*OTHERS, functools.partial(wkv6, half=True), None])
def test_another_operation_is_refused(operation):
    with pytest.raises(TypeError, match="operation must be wkv6, wkv7"):
        sequence_parallel(operation)


def test_all_that_is_timed_is_taken(alone):
    for _, operation in OPERATIONS.values():
        sequence_parallel(operation)


def test_only_short_sequences_at_the_ends_of_a_rank_are_computed_twice():
    def suited(name):
        case = CASES[name]
        ends, parts = case.cu_seqlens and list(case.cu_seqlens), case.parts
        pieces = [pieces_of(T, n, ends, parts) for n, T in enumerate(parts)]
        return [twice.suits(ParallelCall(wkv7, rwkv7, None, 60.0, x, {})) for x in pieces]

    assert suited("wkv7 short ends") == [True, True]
    assert suited("wkv7 short ends, three ranks") == [True, False, True]
    assert suited("wkv7 a sequence over both") == [False, False]
    assert suited("wkv7 one sequence, packed") == [False, False]
    assert suited("wkv7 decay 1") == [False, False]


def test_tokens_are_shared_out_whole():
    assert split_tokens(10, 3) == [3, 4, 3]
    assert split_tokens(1000, 2, first=1.5) == [600, 400]
    assert split_tokens(3, 3, first=9.0) == [1, 1, 1]
    with pytest.raises(ValueError, match="at least 3"):
        split_tokens(2, 3)
