"""Blocked layouts: every element as Triton itself deals it, sectors counted by hand."""

import itertools

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from warplens.compiled.assembly import assembly, can_compile, what_is_missing  # noqa: E402
from warplens.triton.layouts import Blocked, layout_of_load  # noqa: E402

NEEDS_COMPILER = pytest.mark.skipif(not can_compile(), reason=str(what_is_missing()))
ALONG = Blocked((1, 4), (8, 4), (2, 1), (1, 0))
DOWN = Blocked((1, 1), (16, 2), (1, 2), (0, 1))
LAYOUTS = (
    (ALONG, (16, 16)),
    (ALONG, (32, 64)),  # dealt out again in both directions
    (DOWN, (16, 16)),
    (Blocked((4, 1), (4, 8), (1, 2), (0, 1)), (16, 16)),
    (Blocked((2, 2), (8, 4), (2, 2), (0, 1)), (64, 32)),
    (Blocked((2, 2), (8, 4), (2, 2), (1, 0)), (64, 32)),
)


def as_triton_deals(layout, shape):
    """[warps, lanes, registers, 2] from the bases of Triton's own linear layout."""
    from triton._C.libtriton import gluon_ir, ir
    from triton.experimental.gluon.language import BlockedLayout

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    parts = layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta, layout.order
    written = BlockedLayout(*map(list, parts))._to_ir(builder)
    linear = builder.to_linear_layout(written, list(shape))

    def places(bases):  # bit n of the number adds basis n
        bases = np.array(bases, int).reshape(-1, 2)
        bits = [combination[::-1] for combination in itertools.product((0, 1), repeat=len(bases))]
        return np.array(bits, int).reshape(2 ** len(bases), len(bases)) @ bases

    warp, lane, register = map(places, (linear.warp_bases, linear.lane_bases, linear.reg_bases))
    return warp[:, None, None] + lane[:, None] + register


@pytest.mark.parametrize("layout, shape", LAYOUTS)
def test_every_register_has_the_element_that_triton_gives_it(layout, shape):
    elements = layout.elements(shape)
    assert np.array_equal(elements, as_triton_deals(layout, shape))
    assert len(np.unique(elements.reshape(-1, 2), axis=0)) == shape[0] * shape[1]


def test_sectors_of_a_load_are_those_of_its_lanes():
    # 8 rows × 16 float32 at once: two whole sectors in each row.
    width, touched = ALONG.loads((16, 16), stride=64)
    assert width == 4 and touched.tolist() == [[16], [16]]
    # 16 rows × 2 columns: a sector in each row, four times over.
    width, touched = DOWN.loads((16, 16), stride=64)
    assert width == 1 and touched.tolist() == [[16] * 4] * 2
    # Rows of 67 do not begin at multiples of 16 bytes: four loads instead of a wide one, and a row
    # of 16 numbers may lie in three sectors.
    width, touched = ALONG.loads((16, 16), stride=67)
    assert width == 1 and touched.shape == (2, 4) and (touched > 16).all()


def test_a_tile_that_the_warps_do_not_fill_is_refused():
    with pytest.raises(ValueError, match=r"shape is \(8, 16\), needs multiples of \(16, 16\)"):
        ALONG.elements((8, 16))


@triton.jit
def column_sums(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, M, BM):
        row = start + tl.arange(0, BM)
        inside = (row[:, None] < M) & (column < N)
        total += tl.load(x + row[:, None] * N + column, inside, 0.0)
    tl.store(y + column, tl.sum(total, 0), column < N)


@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))


@NEEDS_COMPILER
@pytest.mark.parametrize("n, wide", [(64, True), (67, False)])
def test_the_layout_is_the_compilers_and_the_machine_code_loads_as_wide(n, wide):
    sizes = {"M": n, "N": n, "BM": 16, "BN": 16, "num_warps": 2}
    code = assembly(column_sums, x="*fp32", y="*fp32", **sizes)
    shape, layout = layout_of_load(code)
    assert shape == (16, 16) and (layout == ALONG) is wide
    width, touched = layout.loads(shape, stride=n)
    assert (width == 4) is wide
    loads = code.count("LDG")  # an assembler may unroll the loop
    assert loads and loads % touched.shape[1] == 0
    assert code.count("LDG.E.128") == (loads if wide else 0)


@NEEDS_COMPILER
def test_a_kernel_without_a_tile_has_no_layout_of_one():
    with pytest.raises(LookupError, match="doubled loads no tile"):
        layout_of_load(assembly(doubled, x="*fp32", y="*fp32", BLOCK=1024))
