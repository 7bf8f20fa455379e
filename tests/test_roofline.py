"""The roof against numbers worked out by hand; in the picture no text covers another."""

from itertools import combinations
from types import SimpleNamespace

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from rwkv_lessons.lab.occupancy import plot_occupancy  # noqa: E402
from rwkv_lessons.lab.roofline import KINDS, Ceiling, Dot, plot_roofline, roofline  # noqa: E402

CARD = Ceiling("a card", bytes_per_s=2e12, flops_per_s=40e12)  # ridge: 20 operations a byte


def work(bytes, flops):
    return SimpleNamespace(bytes=bytes, flops=flops)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_memory_is_the_limit_left_of_the_ridge():
    roof = roofline(work(4e9, 8e9), CARD)
    assert CARD.ridge == 20
    assert (roof.bound, roof.intensity) == ("memory", 2)
    assert roof.floor_ms == pytest.approx(2)  # 4 GB at 2 TB/s
    assert roof.flops_per_s == pytest.approx(4e12)  # 2 operations a byte × 2 TB/s
    assert str(roof) == "at least 2 ms: memory is the limit, 2 operations a byte"


def test_arithmetic_is_the_limit_right_of_it():
    roof = roofline(work(1e9, 80e9), CARD)
    assert (roof.bound, roof.intensity) == ("arithmetic", 80)
    assert roof.floor_ms == pytest.approx(2)  # 80 G operations at 40 T/s
    assert roof.flops_per_s == pytest.approx(40e12)
    assert roof.share(8) == pytest.approx(0.25)


def test_bad_input():
    with pytest.raises(ValueError, match="bytes_per_s is 0"):
        Ceiling("", 0, 1)
    with pytest.raises(ValueError, match="work.bytes is 0"):
        roofline(work(0, 1), CARD)
    with pytest.raises(ValueError, match="kind is 'mine', needs one of"):
        Dot("mine", "", work(1, 1), 1)
    with pytest.raises(ValueError, match="ms is -1"):
        Dot("yours", "", work(1, 1), -1)
    with pytest.raises(ValueError, match="dots is empty"):
        plot_roofline(CARD, [])


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
    figure = plot_roofline(CARD, dots)
    figure.draw_without_rendering()
    texts = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    for dot in dots:
        assert any(t.get_text().startswith(f"{dot.label}: {dot.ms:.3g} ms") for t in texts)
    # The box of a turned text is larger than the text, so it is left out here.
    boxes = [t for t in texts if t.get_rotation() == 0]
    boxes = [(t.get_text(), Text.get_window_extent(t)) for t in boxes]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} covers {other!r}"
    for text, box in boxes:
        if ": " in text:
            assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, f"{text!r} is cut off"


def test_dots_lie_where_their_numbers_say():
    figure = plot_roofline(CARD, [Dot("yours", "yours", work(4e9, 8e9), 4.0)])
    marker = next(x for x in figure.axes[0].lines if x.get_marker() == KINDS["yours"]["marker"])
    assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (2, pytest.approx(2e12))
    assert any("50% of the roof" in t.get_text() for t in figure.findobj(Text))


def test_kinds_differ_in_shape_and_not_only_in_colour():
    assert len({look["marker"] for look in KINDS.values()}) == len(KINDS)


def test_occupancy_is_drawn_from_the_calculation():
    figure = plot_occupancy(131, mark=64, total_threads=32768)
    fits, given, mark = figure.axes[0].lines
    assert fits.get_ydata()[1] == mark.get_ydata()[0] == 12  # 64 threads
    assert fits.get_ydata()[-1] == 0  # 1024 threads of 131 registers do not start
    assert given.get_ydata()[1] == 8
    assert len(fits.get_ydata()) == 32
