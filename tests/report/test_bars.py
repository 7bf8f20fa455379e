"""The bars of docs/results/: of records that are there, each read once."""

import pytest

pytest.importorskip("triton")
from rwkv_lessons.records.lookup import GPU  # noqa: E402
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save  # noqa: E402
from rwkv_lessons.report import bars  # noqa: E402

SHAPE = (2, 4, 2, 64)
CHARTS = [bars.Chart(x, x, SHAPE, {"a": "ours", "b": "theirs"}) for x in ("wkv6", "wkv7")]


def recorded(name, folder):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    times = {"b": 2.0, "a": 1.5, "another": 9.0}
    rows = [Measurement(x, SHAPE, "bfloat16", 5, ms) for x, ms in times.items()]
    save(Record(name, here, tuple(rows)), folder)


def test_a_figure_has_the_bars_of_each_chart_or_is_not_drawn(tmp_path):
    recorded("wkv6", tmp_path)
    assert bars.recorded(CHARTS, tmp_path) == []
    recorded("wkv7", tmp_path)
    measured = bars.recorded(CHARTS, tmp_path)
    assert [rows for *_, rows in measured] == [[("ours", 1.5), ("theirs", 2.0)]] * 2
    titles = [ax.get_title(loc="left") for ax in bars.figure(measured).axes]
    assert titles == [f"{name}, {GPU.split()[1]}, ms" for name in ("wkv6", "wkv7")]


def test_a_record_is_looked_up_once(tmp_path, monkeypatch):
    for chart in CHARTS:
        recorded(chart.record, tmp_path)
    newest, names = bars.newest, []
    monkeypatch.setattr(
        bars, "newest", lambda x, folder: names.append(x) or newest(x, folder=folder)
    )
    bars.figure(bars.recorded(CHARTS, tmp_path))
    assert names == ["wkv6", "wkv7"]
