"""Pictures and counts of lessons 10 and 11: who has how many products, and what reading costs."""

import pytest

from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.lessons.lessons_10_11 import pictures as timex


@pytest.fixture(scope="module")
def lesson():
    return solutions("10_time_x")


def test_the_triangle_counts_its_products():
    text = timex.triangle(T=5, t=4, outputs=4).text
    assert text.startswith("15 products, 5 distances") and "4 to 7 have 26 products" in text


def test_pairing_makes_every_thread_as_busy_as_the_last(lesson):
    kernels = {
        "grouped": (lesson.grouped, lesson.launch_grouped),
        "balanced": (lesson.balanced, lesson.launch_balanced),
    }
    grouped, balanced = timex.thread_loads(**kernels).text.splitlines()
    assert grouped == "grouped: 32 threads, 52% busy on average"
    assert balanced == "balanced: 16 threads, 100% busy on average"


def test_a_rung_is_printed_beside_the_times_of_its_original(lesson, capsys):
    timex.rungs(four=(lesson.four, lesson.launch_four))
    _, row, least = capsys.readouterr().out.splitlines()
    # 3 reads of 4, 4 and 1 passes for 16 products, those beyond the triangle, and the staging.
    assert 9 / 16 < float(row.split()[1]) < 0.8
    assert row.split()[3:] == ["1.19", "ms", "14", "ms"] and "multiply-adds 0.22 ms" in least


def test_wavefronts_are_milliseconds_at_one_a_cycle():
    products = 32 * 768 * 768 * 769 / 2
    assert timex.wavefronts_ms(32) == pytest.approx(1e3 * products / timex.SMS / timex.CLOCK)


def test_a_pair_of_groups_reads_as_many_tokens_as_any_other():
    lines = timex.pairs(T=64, threads=(0, 3, 7)).text.splitlines()
    assert [line.split()[-2] for line in lines] == ["68"] * 3
    assert lines[1] == "thread 3: groups 3 and 12, 16 + 52 = 68 tokens"
