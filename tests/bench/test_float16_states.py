"""The table of float16 states in docs/serving.md: its rows, and which rounding is better."""

from pathlib import Path

import pytest

from rwkv_lessons.bench.trials import float16_states

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_page_has_the_rows_that_the_command_measures():
    text = PAGE.read_text(encoding="utf-8")
    for kind, memory, rate in float16_states.ROWS:
        assert f"| {kind} | {memory:,} | {rate:g} |" in text
    assert "python -m rwkv_lessons.bench.trials.float16_states" in text


def test_to_nearest_is_better_for_a_short_memory_and_worse_where_few_tokens_write():
    errors = float16_states.measure(300)
    nearest, stochastic = errors["float16, nearest"], errors["float16, stochastic"]
    assert stochastic[0] / nearest[0] == pytest.approx(2**0.5, rel=0.1)  # twice the variance
    assert nearest[5] > 2 * stochastic[5]
    assert max(errors["float32"]) < 1e-5  # 300 roundings of 6e-8, added up
