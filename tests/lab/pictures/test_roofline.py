"""The roof against numbers worked out by hand; in the picture no text covers another."""

from itertools import combinations
from types import SimpleNamespace

import pytest
from matplotlib.text import Text

from rwkv_lessons.lab import predict
from rwkv_lessons.lab.pictures.roofline import (
    KINDS,
    Dot,
    ceiling,
    plot_roofline,
    under_the_roof,
)
from rwkv_lessons.records import lookup as records
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save
from warplens.compiled.occupancy import occupancy
from warplens.least_time import Ceiling, roof_over
from warplens.pictures.occupancy import plot_occupancy

GPU = Ceiling("a GPU", bytes_per_s=2e12, flops_per_s=40e12)  # ridge: 20 operations a byte


def work(bytes, flops):
    return SimpleNamespace(bytes=bytes, flops=flops)


def test_memory_is_the_limit_left_of_the_ridge():
    roof = roof_over(work(4e9, 8e9), GPU)
    assert GPU.ridge == 20
    assert (roof.bound, roof.intensity) == ("memory", 2)
    assert roof.floor_ms == pytest.approx(2)  # 4 GB at 2 TB/s
    assert roof.flops_per_s == pytest.approx(4e12)  # 2 operations a byte × 2 TB/s
    assert str(roof) == "at least 2 ms: memory is the limit, 2 operations a byte"


def test_arithmetic_is_the_limit_right_of_it():
    roof = roof_over(work(1e9, 80e9), GPU)
    assert (roof.bound, roof.intensity) == ("arithmetic", 80)
    assert roof.floor_ms == pytest.approx(2)  # 80 G operations at 40 T/s
    assert roof.flops_per_s == pytest.approx(40e12)
    assert roof.share(8) == pytest.approx(0.25)


@pytest.fixture
def recorded(tmp_path):
    """Records of a made-up GPU's ceilings and of one rung: 4·B·T·H·N float32 and 2·H·N."""
    where = Provenance(records.GPU, "1", "2", "2026-01-02", "abc", "make record", "median")
    limits = {"copy_bytes_per_s": 4e12, "fp32_flops_per_s": 5e13, "bf16_flops_per_s": 7e14}
    save(Record("ceilings", where, ceilings=limits), tmp_path)
    row = Measurement("05_float4", (8, 4096, 64, 64), "float32", median_ms=11.6)
    save(Record("wkv5-ladder", where, (row,)), tmp_path)
    return tmp_path


def test_ceilings_come_from_the_record(recorded):
    float32, bfloat16 = (ceiling(dtype, folder=recorded) for dtype in ("float32", "bfloat16"))
    assert (float32.bytes_per_s, float32.flops_per_s, bfloat16.flops_per_s) == (4e12, 5e13, 7e14)
    assert float32.source == f"{records.GPU}, 2026-01-02"
    with pytest.raises(ValueError, match="dtype is 'int8', needs one of float32"):
        ceiling("int8", folder=recorded)
    with pytest.raises(LookupError, match="no record 'ceilings'"):
        ceiling(folder=recorded / "elsewhere")


def test_a_lesson_shows_what_there_is(recorded, capsys, monkeypatch):
    monkeypatch.setenv("RWKV_LESSONS_PROGRESS", "off")
    predict("05_float4.ms", 7.5)
    capsys.readouterr()
    picture = under_the_roof("05_float4", "05_float4.ms", own_ms=12.0, folder=recorded)
    # 7 · 8 · 4096 · 64 · 64² operations at 50 T/s: 1.20 ms; the bytes take 0.54 ms.
    assert "at least 1.2 ms: arithmetic is the limit, 28 operations a byte" in str(picture)
    assert f"{records.GPU}, 2026-01-02" in str(picture)
    drawn = " ".join(t.get_text() for t in picture.figure.findobj(Text))
    for text in ("recorded: 11.60 ms, 10%", "yours: 12.00 ms, 10%", "your prediction: 7.5 ms, 16%"):
        assert text in drawn and text in str(picture)
    assert under_the_roof("05_float4", folder=recorded / "elsewhere") is None
    assert "No roofline yet: no record 'wkv5-ladder'" in capsys.readouterr().out


def test_bad_input():
    with pytest.raises(ValueError, match="bytes_per_s is 0"):
        Ceiling("", 0, 1)
    with pytest.raises(ValueError, match="least.bytes is 0"):
        roof_over(work(0, 1), GPU)
    with pytest.raises(ValueError, match="kind is 'mine', needs one of"):
        Dot("mine", "", work(1, 1), 1)
    with pytest.raises(ValueError, match="ms is -1"):
        Dot("yours", "", work(1, 1), -1)
    with pytest.raises(ValueError, match="dots is empty"):
        plot_roofline(GPU, [])


@pytest.mark.parametrize(
    "dots",
    [
        [("yours", 8.0), ("recorded", 8.1), ("predicted", 8.2), ("recorded", 8.0)],
        [("yours", 100.0), ("predicted", 0.01)],  # faster than the roof
        [("recorded", 2.0 * 1.01**n) for n in range(8)],
    ],
)
@pytest.mark.parametrize("least", [work(4e9, 8e9), work(1e9, 80e9)])
def test_labels_do_not_overlap_and_say_the_time(dots, least):
    dots = [Dot(kind, f"{kind} {n}", least, ms) for n, (kind, ms) in enumerate(dots)]
    figure = plot_roofline(GPU, dots).figure
    figure.draw_without_rendering()
    texts = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    for dot in dots:
        time = f"{dot.ms:.3g}" if dot.kind == "predicted" else f"{dot.ms:.2f}"
        assert any(t.get_text().startswith(f"{dot.label}: {time} ms") for t in texts)
    # The box of a turned text is larger than the text, so it is left out here.
    boxes = [t for t in texts if t.get_rotation() == 0]
    boxes = [(t.get_text(), Text.get_window_extent(t)) for t in boxes]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} covers {other!r}"
    for text, box in boxes:
        if ": " in text:
            assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, f"{text!r} is cut off"


def test_dots_lie_where_their_numbers_say():
    figure = plot_roofline(GPU, [Dot("yours", "yours", work(4e9, 8e9), 4.0)]).figure
    marker = next(x for x in figure.axes[0].lines if x.get_marker() == KINDS["yours"]["marker"])
    assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (2, pytest.approx(2e12))
    assert any("50% of the roof" in t.get_text() for t in figure.findobj(Text))


def test_a_share_below_one_percent_is_not_called_none():
    figure = plot_roofline(GPU, [Dot("yours", "yours", work(4e9, 8e9), 800.0)]).figure
    assert any("0.2% of the roof" in t.get_text() for t in figure.findobj(Text))


def test_kinds_differ_in_shape_and_not_only_in_colour():
    assert len({look["marker"] for look in KINDS.values()}) == len(KINDS)


def test_occupancy_is_drawn_from_the_calculation():
    picture = plot_occupancy(131, mark=64, total_threads=32768)
    assert str(picture) == str(occupancy(131, 64, blocks=512))
    fits, given, mark = picture.figure.axes[0].lines
    assert fits.get_ydata()[1] == mark.get_ydata()[0] == 12  # 64 threads
    assert fits.get_ydata()[-1] == 0  # 1024 threads of 131 registers do not start
    assert given.get_ydata()[1] == 8
    assert len(fits.get_ydata()) == 32
