"""The reverse sweep for heads of 128 in Gluon, as it is written, on the CPU."""

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv6_gradients import checkpoints_dtype, compare, draw, expected, kept_states
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6.chunked.hopper import wide_sweep

pytestmark = interpreted
LIMIT = 2.8e-3  # as of heads of 64 (test_wkv6_hopper_gradients.py)


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    kernel = Mutable(wide_sweep.wkv6_wide_sweep_kernel)

    def launch(programs, registers, *args):
        kernel[(programs,)](*args, registers, num_warps=4)

    monkeypatch.setattr(wide_sweep, "launch", launch)
    return kernel


def check(inputs, do, ds1, limit=LIMIT, lengths=None, scale=1.0, raw=False):
    cu_seqlens = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0)
    r, k, v, w, u, s0 = inputs
    plain = [r, k, v, -torch.exp(w.double()) if raw else w, u, s0]
    states = kept_states(plain, lengths, checkpoints_dtype(r))
    options = {"cu_seqlens": cu_seqlens, "scale": scale, "raw_decay": raw}
    results = wide_sweep.wide_gradients(*inputs[:5], states, do, ds1, **options)
    compare(results, expected(inputs, do, ds1, lengths, scale, raw), limit)


@pytest.mark.parametrize("T", [1, 32, 70])
def test_whole_and_partial_chunks(T):
    check(*draw(1, T, 1, 128, 128, "mixed", torch.bfloat16), limit=3e-3 if T == 1 else LIMIT)


@pytest.mark.parametrize("decay", [-0.001, -3.5, -20.0, "strong"])
def test_every_decay(decay):
    check(*draw(1, 70, 1, 128, 128, decay, torch.bfloat16))


@pytest.mark.parametrize("raw", [False, True])
def test_packed_sequences(raw):
    lengths = [1, 0, 69, 40]
    x = draw(1, sum(lengths), 1, 128, 128, "mixed", torch.bfloat16, sequences=len(lengths))
    check(*x, lengths=lengths, scale=0.5, raw=raw)
