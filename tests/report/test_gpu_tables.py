"""docs/gpus.md has the tables that are computed, and files that readers send in become one."""

from pathlib import Path

import pytest

pytest.importorskip("triton")
from rwkv_lessons.operations import work  # noqa: E402
from rwkv_lessons.records.schema import (  # noqa: E402
    Measurement,
    Provenance,
    Record,
    load,
    path,
    save,
)
from rwkv_lessons.report import gpus, tables  # noqa: E402
from warplens.least_time import data_sheet  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"


@pytest.mark.parametrize("table", [gpus.least_times, gpus.warps, gpus.sent_in])
def test_the_page_has_each_table(table):
    assert table() in PAGE.read_text(encoding="utf-8")


def test_the_least_time_is_that_of_the_bytes_at_nine_tenths_of_the_bandwidth():
    # RWKV-6 forward: r, k, v, w read, o written, in two bytes; u and the states are small.
    ms = 1e3 * 5 * 2 * 8 * 4096 * 64 * 64 / (0.9 * 0.936e12)
    cells = gpus.least_times().splitlines()[2].split("|")
    assert float(cells[4]) == pytest.approx(ms, abs=0.006)


def test_a_file_that_was_sent_in_is_a_column(tmp_path):
    here = Provenance("NVIDIA RTX", "1", "13.0", "2026-11-25", "abc1234", "quick", "events")
    rows = [
        Measurement("wkv6: chunked", (2, 4, 2, 64), "bfloat16", median_ms=1.5),
        Measurement("wkv7: chunked", (2, 4, 2, 64), "bfloat16", problem="wrong: error 1"),
    ]
    save(Record("quick", here, tuple(rows)), tmp_path)
    text = gpus.sent_in(tmp_path)
    assert "NVIDIA RTX, 2026-11-25, abc1234" in text
    assert "| wkv6: chunked | 1.500 ms |" in text and "| wkv7: chunked | wrong: error 1 |" in text
    assert gpus.sent_in(tmp_path / "nothing") == ""


def test_the_page_says_how_many_times_the_least_time_an_h200_takes():
    names = ("wkv6", "wkv6-backward"), ("wkv7", "wkv7-backward")
    (one, both), (one_7, both_7) = ([_times_the_least(name) for name in pair] for pair in names)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"RWKV-6 takes {one:.1f} and {both:.1f} times this" in text
    assert f"RWKV-7 {one_7:.1f} and {both_7:.1f} times" in text


def _times_the_least(name):
    operation = name.partition("-")[0]
    row = load(path(name, "NVIDIA H200")).row(operation, gpus.SHAPE, "bfloat16")
    least = work(name, gpus.SHAPE, "bfloat16").bytes
    return row.median_ms * gpus.ONE_COPY * data_sheet("H200").bytes_per_s / 1e3 / least


def test_serving_calls_are_lines_and_types_of_states_columns(tmp_path):
    here = Provenance("NVIDIA H200", "1", "13.0", "2026-11-25", "abc1234", "bench", "events")
    rows = [
        Measurement("float32 state", (8, 1, 64, 64), "bfloat16", median_ms=0.5),
        Measurement("float32 state, graph replay", (8, 1, 64, 64), "bfloat16", median_ms=0.25),
        Measurement("verify, float16 state", (8, 4, 64, 64), "bfloat16", problem="wrong"),
        Measurement("float16 state, prompts alone", (216, 4096, 64, 64), "bfloat16", median_ms=2.0),
    ]
    save(Record("wkv7-serving", here, tuple(rows)), tmp_path)
    head, _, *lines = tables.BLOCKS["wkv7-serving"](tmp_path).splitlines()[:5]
    assert head == "| call | float32 state | float16 state |"
    assert lines == [
        "| 1 token for each of 8 | 0.500; 0.250 | – |",
        "| 4 drafts for each of 8, verify | – | not timed; – |",
        "| 16 prompts and 200 single tokens, prompts alone | – | 2.000; – |",
    ]
