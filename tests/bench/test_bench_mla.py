"""The latent attention part of the benchmarks: what is counted, and a run of the command."""

import pytest
import torch

from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands import mla_decode as mla
from rwkv_lessons.bench.commands import mla_ladder, mla_prefill
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.operations import work
from rwkv_lessons.operations.mla import (
    MLA_DECODE,
    MLA_LADDER,
    MLA_PREFILL,
    least_mla_compact,
)


def test_the_cache_is_most_of_the_bytes():
    B, N, H, R, P, V = 16, 4096, 40, 256, 32, 64
    least = work("mla-decode", (B, N, H, R, P, V), "bfloat16")
    cache = B * N * (R + P) * 2
    assert cache < least.bytes < 1.1 * cache
    # A score and its part of the sum, for each of 40 heads and 65,536 tokens; and w_v.
    assert least.flops == 40 * 65536 * 2 * (288 + 256) + 16 * 40 * 2 * 256 * 64
    with pytest.raises(ValueError, match="6 positive numbers B, N, H, R, P, V"):
        work("mla-decode", (8, 1, 1, 1), "bfloat16")


@pytest.mark.parametrize("method", [mla.decode, mla.paged, mla.torch_absorbed])
def test_all_methods_do_what_the_definition_says(method):
    inputs = mla.make_inputs((2, 70, 3, 32, 16, 16), "float32", torch.device("cpu"))
    o = method(*inputs)()
    expected = mla.in_float64(*inputs)
    assert o.shape == expected.shape == (2, 1, 3, 16)
    # Sums of up to 70 terms in float32.
    assert relative_error(o, expected) < 1e-6


@pytest.mark.parametrize("method", [mla.padded, mla.fp8, mla.lists, mla.fp8_lists])
def test_few_heads_in_other_calls(method):
    inputs = mla.make_inputs((2, 3000, 3, 128, 16, 16), "bfloat16", torch.device("cpu"))
    made = method(*inputs)
    expected = in_float64 = mla.in_float64(*inputs)
    if method is not mla.padded:
        expected = made.expected()
        # Of the FP8 cache, and of 2,048 of 3,000 tokens, the definition is another.
        assert relative_error(in_float64, expected) > 1e-3
    assert relative_error(made(), expected) < 3e-3


def test_an_fp8_cache_has_656_bytes_a_token():
    shape, tokens = (64, 65536, 16, 512, 64, 128), 2048
    both = [least_mla_compact(*shape, tokens=tokens, fp8=fp8).bytes for fp8 in (False, True)]
    assert both[0] - both[1] == 64 * tokens * (1152 - 656)
    whole = work("mla-decode", (64, tokens, *shape[2:]), "bfloat16")
    assert both[0] == whole.bytes + 64 * tokens * 4  # and the list
    assert least_mla_compact(*shape, tokens=tokens, fp8=True).flops == whole.flops


@pytest.mark.skipif(torch.cuda.is_available(), reason="times on a GPU are not of a CPU")
def test_the_command_runs_and_records_nothing_of_a_cpu(capsys):
    main(["mla-decode", "--quick", "--dtype", "float32"])
    said = capsys.readouterr().out
    assert "torch absorbed" in said and "2,70,3,32,16,16" in said
    assert "B,N,H,R,P,V" in said and "B,T,H,N" not in said
    with pytest.raises(SystemExit, match="times of a CPU are not recorded"):
        main(["mla-decode", "--quick", "--record"])


def test_a_method_that_fails_does_not_stop_the_others(monkeypatch):
    def fails(*_):
        raise RuntimeError("out of resources. Reduce something")

    cpu = torch.device("cpu")
    for module in (mla_prefill, mla_ladder):
        bad, *_ = module.METHODS
        shape = (MLA_PREFILL if module is mla_prefill else MLA_LADDER).quick
        broken = fails if module is mla_prefill else (fails, module.METHODS[bad][1])
        monkeypatch.setitem(module.METHODS, bad, broken)
        first, *others = module.measure(shape, "float32", cpu, quick=True)
        assert first.problem == "RuntimeError: out of resources"
        assert any(row.median_ms for row in others)
    (row,) = mla._measure(fails, MLA_DECODE.quick, "float32", cpu, 1)
    assert row.problem == "RuntimeError: out of resources"


def test_a_wrong_answer_is_not_timed():
    wrong = mla.torch_absorbed

    def doubled(*inputs):
        return lambda: 2 * wrong(*inputs)()

    rows = mla._measure(doubled, (1, 9, 2, 16, 16, 16), "float32", torch.device("cpu"), 1)
    assert len(rows) == 1 and rows[0].median_ms is None and "not timed" in rows[0].problem
