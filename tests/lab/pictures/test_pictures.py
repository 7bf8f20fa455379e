"""The pictures show what the trace counted: as many cells, lines and words as there should be."""

import dataclasses
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.colors import to_hex
from numba import cuda, float32

from rwkv_lessons.runtime.launch_numba import load4
from warplens.cuda import banks
from warplens.cuda.trace import trace
from warplens.pictures import style
from warplens.pictures import traces as pictures

COLUMNS = 32


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((32, COLUMNS), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    y[i, j] = tile[j, i]


def strided(x, y):
    i = cuda.grid(1)
    if i < 20:
        y[i] = x[i * 16]


def everyone_the_same_four(x, y):
    y[cuda.grid(1)] = load4(x, (0,))[0]


def barriers(y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    for n in range(9):
        s[i] = n
        cuda.syncthreads()
        cuda.atomic.add(y, i, s[31 - i])
        cuda.syncthreads()


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.fixture(scope="module")
def tiles():
    """The transposition through a tile of 32 and of 33 columns."""
    x = zeros(32, 32)
    return [trace(transpose, 1, (32, 32), x, x.copy(), constants={"COLUMNS": n}) for n in (32, 33)]


def colours(picture):
    return [to_hex(patch.get_facecolor()) for ax in picture.figure.axes for patch in ax.patches]


def boxes(picture, name):
    return sum(colour == style.OKABE_ITO[name].lower() for colour in colours(picture))


def test_a_strip_draws_the_lanes_that_take_part_and_the_sectors_they_touch():
    t = trace(strided, 1, 32, zeros(1024), zeros(32))
    picture = pictures.sectors(t, array="x")
    assert picture.text.endswith("x: 20 lanes read 4 bytes each: 20 sectors, 80 of 640 bytes used")
    (ax,) = picture.figure.axes
    assert len(ax.lines) == 20  # one from each active lane to its word
    assert boxes(picture, "blue") == 20 + 20  # lanes and words
    assert picture.text.split(": ", 1)[1] in ax.get_title(loc="left")
    assert "y[i] = x[i * 16]" in ax.get_title(loc="left")


def test_a_wide_load_of_one_address_fills_half_a_sector():
    t = trace(everyone_the_same_four, 1, 32, zeros(4), zeros(32))
    picture = pictures.sectors(t, array="x")
    assert picture.text.endswith("32 lanes read 16 bytes each: 1 sector, 16 of 32 bytes used")
    assert boxes(picture, "blue") == 32 + 4


def test_banks_draw_a_row_per_wavefront(tiles):
    bad, good = (pictures.banks(t, array="tile", op="load") for t in tiles)
    assert bad.text.endswith("tile: 32 lanes read 4 bytes each: 32 wavefronts, 31 conflicts")
    assert good.text.endswith("tile: 32 lanes read 4 bytes each: 1 wavefront, no conflict")
    assert (boxes(bad, "blue"), boxes(bad, "orange")) == (1, 31)
    assert (boxes(good, "blue"), boxes(good, "orange")) == (32, 0)


def test_a_timeline_draws_each_barrier_and_says_what_it_leaves_out():
    t = trace(barriers, 1, 32, zeros(32))
    picture = pictures.timeline(t)
    assert picture.text == (
        "barriers, block (0, 0, 0): 18 barriers, 18 intervals, the first 9 drawn"
    )
    (ax,) = picture.figure.axes
    assert len(ax.lines) == 9
    # Writing s in five of the nine intervals; reading it and adding to y in four; the legend's.
    assert [boxes(picture, n) for n in ("vermillion", "blue", "purple")] == [5 + 1, 4 + 1, 4 + 1]


def test_side_by_side_shows_both_on_one_scale(tiles):
    picture = pictures.side_by_side(*tiles, array="tile", op="load", space="shared")
    before, yours = picture.text.splitlines()
    assert before.startswith("before: line") and before.endswith("31 conflicts")
    assert yours.startswith("yours: line") and yours.endswith("no conflict")
    one = trace(strided, 1, 32, zeros(1024), zeros(32))
    picture = pictures.side_by_side(one, tiles[0], array="x")
    widths = [
        {
            round(p.get_width(), 6)
            for p in ax.patches
            if to_hex(p.get_facecolor()) == style.FAINT.lower()
        }
        for ax in picture.figure.axes
    ]
    assert widths[1] < widths[0] and len(widths[1]) == 1  # beside its idle lanes, the same sector
    with pytest.raises(ValueError, match="space is 'local'"):
        pictures.side_by_side(one, one, space="local")


def test_a_request_that_does_not_exist_is_named(tiles):
    with pytest.raises(ValueError, match="array='z'.*0 such requests"):
        pictures.banks(tiles[0], array="z")


def test_a_picture_is_an_image_in_a_notebook_and_a_sentence_elsewhere(tiles, tmp_path):
    picture = pictures.sectors(tiles[0], array="x")
    png, shown = picture._repr_png_()
    width, height = (int.from_bytes(png[n : n + 4]) for n in (16, 20))  # in every PNG's header
    assert png.startswith(b"\x89PNG")
    assert (width // 2, height // 2) == (shown["width"], shown["height"])  # sharp on fine screens
    assert repr(picture) == picture.text
    assert picture.figure.get_figwidth() <= 10
    picture.save(tmp_path / "strip.png")
    assert (tmp_path / "strip.png").read_bytes().startswith(b"\x89PNG")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 32),
    st.sampled_from([4, 8, 16]),
    st.sampled_from(["load", "store", "atomic"]),
    st.data(),
)
def test_the_drawn_schedule_has_the_counted_passes(lanes, width, op, data):
    places = data.draw(st.lists(st.integers(0, 80), min_size=lanes, max_size=lanes))
    lane, address = np.arange(lanes), width * np.array(places)
    passes = banks.schedule(lane, address, width, op)
    zero = np.zeros(lanes, int)
    counted, least = banks.wavefronts(zero, lane, address, width, op)
    assert [len(passes)] == list(counted)
    assert sum(not extra for _, extra in passes) == least[0]
    assert {n for served, _ in passes for who in served.values() for n in who} == set(range(lanes))


def test_a_program_of_triton_and_its_share():
    pytest.importorskip("triton")
    from rwkv_lessons.lab.course.exercises import load, solutions
    from rwkv_lessons.lab.evidence.wkv6_triton import Size, wkv6_launch
    from rwkv_lessons.lab.pictures.programs import program_accesses
    from warplens.triton.run import trace as triton_trace

    lesson, kernel = solutions("13_fused_recurrent"), load("13_fused_recurrent.kernel").reference
    size = Size((1, 6, 2, 10, 7))
    launch = wkv6_launch(lesson.launch, lesson.TENSORS, lesson.WRITES, size, BK=4, BV=4)
    seen = triton_trace(kernel, launch.grid, **launch.arguments())
    picture = program_accesses(seen, "r", "s0", "o_parts", program=(1, 2, 1))
    assert "r 12 of 60 elements of its plane, all programs 2×" in picture.text
    assert "s0 6 of 70 elements" in picture.text and "o_parts 18 of 42" in picture.text
    r, s0, o = picture.figure.axes
    assert (r.get_xlabel(), r.get_ylabel(), s0.get_ylabel()) == ("key", "token", "key")
    assert [text.get_text() for text in (r.title, s0.title, o.title)] == [""] * 3  # set on the left
    assert o.get_title(loc="left") == "o_parts: written 1×"
    with pytest.raises(ValueError, match="does not use r"):
        program_accesses(seen, "r", program=(9, 9, 9))


def test_blocks_are_dealt_out_over_the_gpu():
    from rwkv_lessons.lab.lessons.lesson_13.pictures import on_the_gpu

    picture = on_the_gpu(("few", 16, 4), ("many", 256, 1))
    few, many = picture.text.splitlines()
    assert few == "few: 16 × 4 warps, on 16 of 132 SMs, 4 warps each"
    assert many == "many: 256 × 1 warp, on 132 of 132 SMs, 1 or 2 warps each"
    top, _ = picture.figure.axes
    assert len(top.patches) == 132 and len(top.texts) == 16


@pytest.mark.parametrize("sizes", [(32, 128, 256, 512), (32,)])
def test_no_title_leaves_the_picture(sizes):
    from rwkv_lessons.lab.lessons.lesson_06.pictures import places

    figure = places(131, sizes, threads=32768).figure
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    for ax in figure.axes:
        box = ax.title.get_window_extent(), ax._left_title.get_window_extent()
        assert all(b.x1 <= width and b.y1 <= height for b in box), ax.get_title(loc="left")


def test_figures_are_drawn_with_the_fonts_that_matplotlib_brings(tmp_path, monkeypatch):
    """A machine's own DejaVu, of another version, would change every glyph of every SVG."""
    fonts = font_manager.fontManager
    bundled = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    own = next(x for x in fonts.ttflist if Path(x.fname).name == bundled.name)
    another = dataclasses.replace(own, fname=str(tmp_path / bundled.name))
    Path(another.fname).write_bytes(bundled.read_bytes())
    monkeypatch.setattr(fonts, "ttflist", [another])
    fonts._findfont_cached.cache_clear()
    assert font_manager.findfont("DejaVu Sans") == another.fname
    style._take_bundled_fonts.cache_clear()
    style.use()
    found = font_manager.findfont("DejaVu Sans")
    style._take_bundled_fonts.cache_clear()  # the next figure looks again, at the real list
    assert Path(found) == bundled
