"""The cluster kernel of 128 heads: no GPU has run it, so a simulator does, and a compiler."""

import inspect
import math
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
from support.gluon_on_cpu import Mutable
from support.mla_problem import in_float64, problem, relative_error

from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.trials import mla_cluster as trial
from rwkv_lessons.bench.trials import variants
from rwkv_lessons.mla.decode import cluster
from rwkv_lessons.mla.decode import forward as decode
from rwkv_lessons.runtime import devices
from warplens.compiled.assembly import can_compile
from warplens.compiled.functions import plain
from warplens.gluon import GluonFault, OnCPU
from warplens.gluon.run import Machine

if cluster.missing():
    pytest.skip(cluster.missing(), allow_module_level=True)

CPU = torch.device("cpu")
COMPILE = """
import torch
from rwkv_lessons.bench.launches import recorded
from rwkv_lessons.bench.machine_code.compile import in_triton
from rwkv_lessons.bench.trials import mla_cluster as trial
from warplens.compiled.assembly import INSTRUCTION
from warplens.compiled.disassembler import disassembled
(*tensors,), _ = trial.case(1, 1, 64, torch.device("cpu"))
with recorded("sm_90") as launches:
    trial.in_clusters(*tensors, 1.0)
code = in_triton(launches[0], "sm_90")
text = disassembled(code.asm["cubin"])
print(code.metadata.shared, *(match[2] for match in INSTRUCTION.finditer(text)))
"""
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels are compiled")


@pytest.fixture
def simulated(monkeypatch):
    """Both kernels on the CPU, of an H200's host code."""
    kernel = Mutable(cluster.decode_cluster_kernel)

    def combine(kernel, programs, warps, tensors, numbers, constants, **options):
        OnCPU(kernel, keeps=False).run((programs,), warps, (*tensors, *numbers, *constants))

    def run(programs, *args):
        arguments = dict(zip(inspect.signature(plain(kernel.kernel)).parameters, args, strict=True))
        Machine().run(kernel.kernel, (programs,), 4, arguments, reverse=kernel.reverse)

    kernel.reverse = False
    monkeypatch.setattr(cluster, "run", run)
    monkeypatch.setattr(cluster, "launch", combine)
    monkeypatch.setattr(cluster, "splits_for", lambda *_: 1)
    monkeypatch.setattr(devices, "gpu_of", lambda device: devices.H200)
    monkeypatch.setattr(variants, "CALLS", 1)
    return kernel


def error_of(B, M, N, splits=1, variant=None, **which):
    sizes = {"R": 512, "P": 64, "V": 64, "dtype": torch.bfloat16, "absorbed": True}
    (q, q_rope, latent, k_rope, _, w_v), named = problem(B, M, 128, N, **sizes, **which)
    o, lse = cluster.decode_in_clusters(q, q_rope, latent, k_rope, w_v, **named, **(variant or {}))
    want, want_lse = in_float64((q, q_rope, latent, k_rope, None, w_v), **named)
    seen = want_lse.isfinite()
    assert torch.equal(lse == -math.inf, ~seen) and not o[~seen].any()
    torch.testing.assert_close(lse[seen].double(), want_lse[seen], rtol=1e-5, atol=1e-5)
    return relative_error(o, want)


@ON_CPU
def test_other_lengths(simulated):
    assert error_of(3, 1, 321, lengths=[321, 65, 0]) < trial.LIMIT


@ON_CPU
def test_pages_in_splits(simulated, monkeypatch):
    monkeypatch.setattr(cluster, "splits_for", lambda *_: 2)
    assert error_of(2, 1, 250, lengths=[250, 130], page_size=64) < trial.LIMIT


@ON_CPU
def test_left_padding_and_two_query_tokens_tile_by_tile(simulated):
    variant = {"PAIRS": False, "MULTICAST": False}
    assert error_of(2, 2, 130, left_padding=[3, 70], variant=variant) < trial.LIMIT


@ON_CPU
def test_queries_as_absorbing_leaves_them(simulated):
    tensors, named = trial.case(2, 1, 70, CPU)
    plain = cluster.decode_in_clusters(*tensors, 0.1, **named)
    q = tensors[0].transpose(0, 2).contiguous().transpose(0, 2)  # the head's stride is the largest
    found = cluster.decode_in_clusters(q, *tensors[1:], 0.1, **named)
    assert q.stride() != tensors[0].stride() and all(map(torch.equal, found, plain))


@ON_CPU
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "old, new, inside, message",
    [
        ("if j >= STAGES", "if j < 0", "load_tiles", ["announced twice", "overwritten"]),
        ("(HALF + half * P)", "HALF", "load_tile", ["never ends", "never goes on"]),
        ("mbarrier.wait(ready, j % 2)", "pass", "add_tiles", ["on its way", "never", "nothing"]),
    ],
)
def test_mistakes_are_found(old, new, inside, message, reverse, simulated):
    simulated.mistake(old, new, inside=inside)
    simulated.reverse = reverse
    with pytest.raises(GluonFault) as caught:
        error_of(1, 1, 250)
    assert any(x in str(caught.value) for x in message)


@ON_CPU
def test_weights_wait_for_their_place(simulated):
    simulated.reverse = True
    assert error_of(1, 1, 250) < trial.LIMIT
    simulated.mistake("mbarrier.wait(added, (j + 1) % 2)", "pass", inside="weigh")
    with pytest.raises(GluonFault):
        error_of(1, 1, 250)


@ON_CPU
def test_empty_slots_are_zeros(simulated):
    simulated.mistake("n0 + TOKENS > stop", "False", inside="weigh")
    assert math.isnan(error_of(1, 1, 70, lengths=[50]))


@ON_CPU
def test_other_calls_are_refused(simulated):
    tensors, named = trial.case(1, 1, 64, CPU)
    with pytest.raises(ValueError, match="multiple of 128 heads"):
        cluster.decode_in_clusters(tensors[0][:, :, :64], *tensors[1:], 0.1, **named)


@ON_CPU
def test_the_trial_names_a_wrong_kernel(simulated, monkeypatch):
    inputs, options = trial.case(1, 1, 70, CPU)
    inputs = (*inputs[:4], inputs[4][:, :64])
    monkeypatch.setattr(trial, "cases", lambda device: {"70 tokens": (inputs, options)})
    errors = dict(trial.errors({}, CPU))
    assert len(errors) == 2 and all(0 < x <= trial.LIMIT for x in errors.values())
    simulated.mistake("b_sum * rescale +", "b_sum +", inside="weigh")
    simulated.mistake("b_left * rescale[:, None]", "b_left", inside="add_tiles")
    assert max(dict(trial.errors({}, CPU)).values()) > trial.LIMIT


def test_nothing_else_calls_the_kernel():
    """What no GPU has run is not what `mla_decode` calls."""
    assert not [
        x for x in vars(decode).values() if getattr(x, "__module__", None) == cluster.__name__
    ]


def test_the_command_is_known(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "mla-cluster" in capsys.readouterr().out


@pytest.mark.skipif(not can_compile(cluster.decode_cluster_kernel), reason="no compiler here")
def test_one_copy_arrives_in_both_programs():
    environment = {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    shared, *opcodes = ran.stdout.split()
    assert int(shared) <= devices.H200.shared_bytes
    assert not [x for x in opcodes if x.startswith(("STL", "LDL"))]  # nothing is spilled
    # Three copies of a tile, and the first two tiles have code of their own; queries go to one.
    assert opcodes.count("UTMALDG.2D.MULTICAST") == 9 and opcodes.count("UTMALDG.2D") == 3
    assert sum(x.startswith("HGMMA.64x64x16") for x in opcodes) == 2 * (512 + 64) // 16
    assert opcodes.count("MEMBAR.ALL.GPU") <= 1  # at the start: a release needs none
