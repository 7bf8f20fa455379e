"""The cost model: its limits are what they must be."""

import pytest

from rwkv_lessons.distributed.cost import Rates, forward, map_bytes

RATES = Rates(2e-8, 2e-9, 1e-8, 5e-5, 2e11, 4e12, map_bytes(1, 64, 64, 64, 6))


def test_a_map_of_rwkv6_is_a_state_and_a_column_of_rwkv7_two_matrices():
    assert map_bytes(1, 64, 64, 64, 6) == 4 * 64 * 64 * 65
    assert map_bytes(1, 64, 64, 64, 7) == 4 * 64 * 64 * 128


def test_one_gpu_pays_for_the_main_pass_alone():
    assert forward(1000, 1, RATES).total == pytest.approx(1000 * RATES.main)


def test_what_does_not_shrink_limits_the_speedup():
    speedups = [forward(2**20, ranks, RATES, reach=4000).speedup for ranks in (2, 8, 64)]
    assert 1.9 < speedups[0] < 2 and speedups == sorted(speedups) and speedups[2] < 64
    assert forward(4096, 64, RATES, reach=4000).speedup < 1  # a gather for 64 tokens each


def test_where_nothing_decays_every_token_is_corrected():
    found = forward(2**20, 2, RATES)
    assert found.correction == pytest.approx(2**19 * RATES.correction)
    assert found.speedup == pytest.approx(2 / (1 + 0.5 + 0.1), rel=0.01)
    assert sum(found[:5]) == pytest.approx(found.total)
