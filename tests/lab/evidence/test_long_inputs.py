"""A function right for few tokens, ranks or elements is refused; one that counts up is not."""

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


@pytest.mark.parametrize(
    "id, right, few",
    [
        ("00_start_here.double", "cuda.grid(1)", "cuda.grid(1) & 32767"),
        ("01_five_loops.flops", "7 * B * T * H * N * N",
         "int(np.prod([7, B, T, H, N, N], dtype=np.int32))"),
        ("01_five_loops.least_bytes", "4 * B * T * H * N * itemsize + 2 * H * N * 4",
         "int(np.float32(4 * B * T * H * N * itemsize + 2 * H * N * 4))"),
        ("06_block_size.blocks", "(B * H * N + block - 1) // block",
         "int(-(-np.float32(B * H * N) // np.float32(block)))"),
        ("12_first_tiles.add", "+ tl.arange(0, BLOCK)", "+ tl.arange(0, BLOCK) & 65535"),
        ("12_first_tiles.column_sums", "range(0, M, BM)", "range(0, min(M, 1024 * BM), BM)"),
        ("13_fused_recurrent.grid", "B * H", "(B * H & 32767)"),
    ],
)  # fmt: skip
def test_numbers_of_too_few_bits_are_refused(id, right, few):
    text = exercises.solved(id)
    assert right in text
    assert not evaluate(id, exercises.defined(id, text.replace(right, few), "<few>")).passed


def test_a_numpy_loop_in_place_of_the_five_is_refused():
    id = "01_five_loops.five_loops"
    inner = """for j in range(N):
                    for i in range(N):
                        kv = k[b, t, h, i] * v[b, t, h, j]
                        o[b, t, h, j] += r[b, t, h, i] * (u[h, i] * kv + s[i, j])
                        s[i, j] = decay[h, i] * s[i, j] + kv
"""
    numpys = """kv = np.outer(k[b, t, h], v[b, t, h])
                o[b, t, h] = (r[b, t, h][:, None] * (u[h][:, None] * kv + s)).sum(0)
                s = decay[h][:, None] * s + kv
"""
    text = exercises.solved(id)
    assert inner in text
    result = evaluate(id, exercises.defined(id, text.replace(inner, numpys), "<numpy>"))
    assert not result.passed and "8,192 lines" in str(result)
