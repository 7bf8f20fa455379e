"""A function that is right for few tokens or ranks only is refused; one that counts up is not."""

import textwrap

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate


@pytest.mark.parametrize(
    "id, loop",
    [
        ("22_delta_rule.loop", "range(len(r)"),
        ("30_many_gpus.entries", "range(1, len(A)"),
        ("30_many_gpus.exit_gradients", "range(len(A) - 1"),
        ("15_chunks_by_hand.blocks", "range(0, r.shape[-2]"),
    ],
)
def test_a_loop_with_a_number_in_its_end_is_refused(id, loop):
    text = exercises.solved(id)
    assert loop in text
    start, comma, end = loop.removeprefix("range(").rpartition(", ")
    few = exercises.defined(id, text.replace(loop, f"range({start}{comma}min(128, {end})"), "<few>")
    assert not evaluate(id, few).passed


def test_the_split_found_by_trying_is_right():
    id = "27_split_decode.tokens_per_split"
    tries = """
    def tokens_per_split(B, tiles, N, BN, places):
        n = BN
        while B * tiles * ceil_div(N, n) > places and n < N:
            n += BN
        return n
    """
    assert evaluate(id, exercises.defined(id, textwrap.dedent(tries), "<tries>")).passed
