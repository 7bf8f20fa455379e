"""Time against decay: every recorded case has its place, and the picture says what it shows."""

import pytest
import torch

from rwkv_lessons.bench.commands import decays as measured
from rwkv_lessons.lab.lessons.lesson_21 import decays
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save


def test_every_case_is_drawn_where_half_of_its_decays_are_weaker():
    x = torch.randn(1, 4000, 1, 64, generator=torch.Generator().manual_seed(0))
    assert set(measured.CASES) == set(decays.EVEN) | set(decays.MIXED)
    for case in measured.CASES:
        median = -float(measured.decays(case, x).median())
        wanted = decays.EVEN.get(case, decays.EVEN["tame"])
        assert median == pytest.approx(wanted, rel=0.03), case  # of 256,000 random numbers


@pytest.fixture
def folder(tmp_path):
    rows = [
        Measurement(f"wkv6, {case}{both}", (8, 4096, 64, 64), "bfloat16", 5, ms + n / 100)
        for ms, both in ((1.0, ""), (3.0, ", both passes"))
        for n, case in enumerate(measured.CASES)
    ]
    where = Provenance("NVIDIA H200", "1", "0", "2000-01-01", "c", "x", "y")
    save(Record("wkv6-decays", where, tuple(rows)), tmp_path)
    other = Measurement("fla chunk, w = -5", (8, 4096, 64, 64), "bfloat16", 5, 7.0)
    save(Record("wkv6-decays-peers", where, (other, *rows)), tmp_path / "with peers")
    save(Record("wkv6-decays", where, tuple(rows)), tmp_path / "with peers")
    return tmp_path


def test_the_picture_says_every_time(folder):
    forward, both = repr(decays.time_against_decay(folder=folder)).splitlines()
    for n, case in enumerate(measured.CASES):
        shown = decays.SHOWN.get(case, case)
        assert f"{shown} {1 + n / 100:.2f} ms" in forward
        assert f"{shown} {3 + n / 100:.2f} ms" in both


def test_texts_of_a_panel_do_not_cover_each_other(folder):
    figure = decays.time_against_decay(folder=folder).figure
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert len(boxes) == 3 + len(measured.CASES)
        pairs = ((a, b) for n, a in enumerate(boxes) for b in boxes[:n])
        assert not any(a.overlaps(b) for a, b in pairs)


def test_another_library_is_drawn_where_it_was_recorded(folder):
    def colours(picture):
        return {line.get_color() for line in picture.figure.axes[0].lines}

    alone = colours(decays.time_against_decay(folder=folder))
    beside = decays.time_against_decay(folder=folder / "with peers")
    assert colours(beside) - alone == {decays.style.STORE}
    assert beside.figure.axes[0].get_ylim()[1] > 7
    assert "FLA's chunked kernel: w = -5 7.00 ms" in repr(beside)


def test_without_a_record_there_is_no_picture(tmp_path):
    assert not decays.is_recorded(folder=tmp_path)
    with pytest.raises(LookupError, match="wkv6-decays"):
        decays.time_against_decay(folder=tmp_path)
