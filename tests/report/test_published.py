"""Other people's tables, and the rows of the records that stand among them."""

import pytest

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save
from rwkv_lessons.report.published import EXTRA_SHAPE, HEAD, WIND, WIND_SHAPES, wind_table

WHERE = Provenance("NVIDIA H200", "1", "0", "2000-01-01", "c", "x", "y")


@pytest.fixture
def folder(tmp_path):
    def row(shape, ms, method="wkv7", **more):
        return Measurement(method, shape, "bfloat16", 5, ms, ms, ms, **more)

    first, long = (8, 4096, 64, 64), (1, 32768, 64, 64)
    short = row(first, 5.0, extra_bytes=10**9, error=2e-3)
    wrong = Measurement("wkv7", (8, 4096, 32, 128), "bfloat16", problem="out of memory")
    save(Record("wkv7-backward", WHERE, (short, wrong)), tmp_path)
    more = {"extra_bytes": 3 * 10**9, "error": 4e-3}
    save(Record("wkv7-backward-long", WHERE, (row(long, 6.5, **more),)), tmp_path)
    save(Record("wkv7-peers", WHERE, (row(first, 1.0),)), tmp_path)  # of another command
    return tmp_path


def test_nothing_recorded_leaves_their_rows_alone(tmp_path):
    head, rows = wind_table(tmp_path)
    assert [row[0] for row in rows] == [line[0] for line in WIND]
    assert {len(row) for row in rows} == {len(head)}


def test_our_row_has_the_time_of_each_shape_and_the_span_of_memory_and_error(folder):
    head, rows = wind_table(folder)
    ours = dict(zip(head, rows[-1], strict=True))
    assert len(rows) == len(WIND) + 1
    assert ours["8, 64, 4096"] == "5.00" and ours["8, 128, 4096"] == "out of memory"
    assert ours["8, 256, 4096"] == "–" and ours["1, 64, 32768"] == "6.50"
    inputs_and_results = 14 * 8 * 4096 * 4096 * 2 / 1e9
    assert ours["memory, GB"] == f"{inputs_and_results + 1:.1f}–{inputs_and_results + 3:.1f}"
    assert ours["error"] == "2e-3–4e-3"


def test_the_columns_are_the_shapes_that_the_operation_is_measured_at():
    shapes = {(B, N, T) for B, T, _, N in OPERATIONS["wkv7"].shapes}
    assert shapes == {*WIND_SHAPES, EXTRA_SHAPE} and len(HEAD) == 1 + len(shapes) + 2
    assert all(H * N == 4096 for _, _, H, N in OPERATIONS["wkv7"].shapes)
