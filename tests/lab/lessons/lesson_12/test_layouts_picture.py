"""The picture of layouts: every number of the tile once, frames around the sectors of a load."""

from collections import Counter

from matplotlib.colors import to_hex

from rwkv_lessons.lab.lessons.lesson_12 import layouts
from rwkv_lessons.lab.lessons.lesson_12.layouts import dealt
from warplens.pictures import style
from warplens.triton.layouts import Blocked

ALONG = Blocked((1, 4), (8, 4), (2, 1), (1, 0))
DOWN = Blocked((1, 1), (16, 2), (1, 2), (0, 1))


def frames(ax):
    return [patch.get_bbox().bounds for patch in ax.patches if to_hex(patch.get_edgecolor()) == INK]


INK = style.INK.lower()


def test_two_layouts_of_one_tile():
    picture = dealt((16, 16), 64, as_compiled=ALONG, down_the_columns=DOWN)
    along, down = picture.text.splitlines()
    assert along == (
        "as compiled: a lane has 1 load of 16 bytes; "
        "sectors that warp 0 reads: 16 in its first load, 16 in all"
    )
    assert down == (
        "down the columns: a lane has 4 loads of 4 bytes; "
        "sectors that warp 0 reads: 16 in its first load, 64 in all"
    )
    left, right = picture.figure.axes
    for ax in (left, right):
        lanes = Counter(text.get_text() for text in ax.texts[::2])  # a lane, then its register
        assert lanes == {str(lane): 2 * 4 for lane in range(32)}  # of two warps, four registers
        assert len(frames(ax)) == len(set(frames(ax))) == 16
    # Two sectors in each of eight rows; one in each of sixteen.
    assert {(x, y) for x, y, _, _ in frames(left)} == {(8 * n, y) for n in (0, 1) for y in range(8)}
    assert {(x, y) for x, y, _, _ in frames(right)} == {(0, y) for y in range(16)}
    bold = [sum(t.get_fontweight() == "bold" for t in ax.texts[::2]) for ax in (left, right)]
    assert bold == [32 * 4, 32]


def test_no_title_leaves_its_panel():
    figure = dealt((16, 16), 64, as_compiled=ALONG, down_the_columns=DOWN).figure
    figure.draw_without_rendering()
    left, right = figure.axes
    assert left._left_title.get_window_extent().x1 < right._left_title.get_window_extent().x0
    assert right._left_title.get_window_extent().x1 <= figure.bbox.width
    assert figure._supxlabel.get_window_extent().x1 <= figure.bbox.width


def test_a_reader_swaps_layouts_and_sees_which_sectors_are_used():
    lines = str(layouts.swap_layouts()).splitlines()
    assert [line.partition(":")[0] for line in lines] == list(layouts.CHOICES)
    assert [line.split()[-2] for line in lines] == ["16", "16", "16", "64", "16"]
    assert "uses 25% of them" in lines[3] and "uses 100% of them" in lines[4]
