"""The reverse sweep for heads of 128 in Gluon, as it is written, on the CPU."""

import pytest
import torch
from support.gluon_on_cpu import faults, on_cpu
from support.wkv6_gradients import compare, draw, expected, got
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6.chunked import backward as chunked_backward

pytestmark = interpreted
LIMIT = 2.8e-3  # as of heads of 64 (test_wkv6_hopper_gradients.py)


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    return on_cpu(monkeypatch, chunked_backward, "wkv6_wide_sweep_kernel")


def check(inputs, do, ds1, limit=LIMIT, **options):
    wanted = expected(inputs, do, ds1, **options)
    compare(got(inputs, do, ds1, **options), wanted, limit)


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


@pytest.mark.parametrize(
    "mistake",
    [
        None,
        "mbarrier.wait(parts_stored.index(0), j % 2)",
        "mbarrier.arrive(parts_read.index(0), count=1)",
        "mbarrier.wait(parts_read.index(0), 1 - j % 2)",
    ],
)
def test_either_role_may_run_first(mistake, launched, monkeypatch):
    """And where one does not wait for the other, or never lets it go on, it is seen."""
    found = faults(monkeypatch, chunked_backward, reverse=True)
    inputs, do, ds1 = draw(1, 70, 1, 128, 128, "mixed", torch.bfloat16)
    if mistake:
        launched.mistake(mistake, "pass  # " + mistake, inside="sweep_values")
    results = got(inputs, do, ds1)
    wrong = bool(found)
    try:
        compare(results, expected(inputs, do, ds1), LIMIT)
    except AssertionError:
        wrong = True
    assert wrong == bool(mistake)
