"""Occupancy against cases worked out by hand, and against what the tables say of each resource."""

from types import SimpleNamespace

import pytest

from warplens.architectures import ARCHITECTURES
from warplens.compiled.occupancy import occupancy


@pytest.mark.parametrize(
    "registers, threads, shared, arch, blocks, warps, limit",
    [
        # 32 registers × 32 = 1024 a warp, 16 warps a quarter: 64 warps, all that an SM holds.
        (32, 256, 0, "sm_90", 8, 64, ["threads", "registers"]),
        # 33 × 32 = 1056, rounded up to 1280: 12 warps a quarter, 48 an SM, 6 blocks of 8.
        (33, 256, 0, "sm_90", 6, 48, ["registers"]),
        # 255 × 32 = 8160, rounded up to 8192: 2 warps a quarter, 8 an SM.
        (255, 64, 0, "sm_90", 4, 8, ["registers"]),
        (255, 256, 0, "sm_90", 1, 8, ["registers"]),
        # 131 × 32 = 4192 → 4352: 3 a quarter, 12 an SM. Without quarters it would be 15.
        (131, 64, 0, "sm_90", 6, 12, ["registers"]),
        (131, 128, 0, "sm_90", 3, 12, ["registers"]),
        # A warp a block: 32 blocks are the limit long before 64 warps.
        (16, 32, 0, "sm_80", 32, 32, ["blocks"]),
        # 33 threads need two warps.
        (16, 33, 0, "sm_90", 32, 64, ["threads", "blocks"]),
        # 48 KiB and 1 KiB reserved: 4 in 228 KiB, 3 in 164 KiB.
        (32, 128, 48 * 1024, "sm_90", 4, 16, ["shared memory"]),
        (32, 128, 48 * 1024, "sm_80", 3, 12, ["shared memory"]),
        # The largest block: 227 + 1 of 228 KiB.
        (32, 1024, 227 * 1024, "sm_100", 1, 32, ["shared memory"]),
        # 75 KiB and 1 are exactly a third of 228; one byte more are not.
        (32, 128, 75 * 1024, "sm_90", 3, 12, ["shared memory"]),
        (32, 128, 75 * 1024 + 1, "sm_90", 2, 8, ["shared memory"]),
    ],
)
def test_by_hand(registers, threads, shared, arch, blocks, warps, limit):
    fit = occupancy(registers, threads, shared, arch)
    assert (fit.blocks_per_sm, fit.warps_per_sm) == (blocks, warps)
    assert fit.limited_by == limit
    assert fit.share == warps / 64


def test_what_cannot_start():
    for fit, why in (
        (occupancy(255, 1024), "registers"),  # 32 warps, and 8 fit
        (occupancy(32, 64, 228 * 1024), "shared memory"),
        (occupancy(32, 64, 164 * 1024, "sm_80"), "shared memory"),
    ):
        assert fit.blocks_per_sm == 0 and fit.limited_by == [why]
        assert f"does not start, a block needs more {why}" in str(fit)


def test_grid_of_the_lessons():
    # B·H = 512 blocks of 64 threads on an H200: 3.88 blocks an SM, so one has 4: 8 warps.
    fit = occupancy(96, 64, 1024, blocks=512)
    assert fit.sms == 132
    assert (fit.busiest_blocks, fit.busiest_warps) == (4, 8)
    assert fit.blocks_per_sm == 10  # 96 × 32 = 3072: 5 warps a quarter
    assert fit.waves == pytest.approx(512 / 1320)
    assert fit.tail == pytest.approx(512 / 1320)
    assert "3.88 an SM, the busiest has 4 at a time = 8 warps; 0.39 waves" in str(fit)


def test_tail():
    full = occupancy(32, 256, blocks=132 * 8)
    assert (full.waves, full.tail) == (1, 1)
    one_more = occupancy(32, 256, blocks=132 * 8 + 1)
    assert one_more.busiest_blocks == 8
    assert one_more.waves > 1 and one_more.tail == pytest.approx(1 / (132 * 8))
    assert occupancy(32, 256, blocks=10, sms=4).busiest_blocks == 3


def test_of_an_assembly():
    kernel = SimpleNamespace(registers=96, shared_bytes=1024, arch="sm_80")
    fit = occupancy(kernel, 64)
    assert (fit.registers, fit.shared_bytes, fit.arch) == (96, 1024, "sm_80")
    assert occupancy(kernel, 64, shared_bytes=512).shared_bytes == 1536
    assert fit.sms == ARCHITECTURES["sm_80"].sms == 108


def test_more_of_anything_never_fits_more():
    for step in range(8, 255, 8):
        assert occupancy(step + 1, 128).blocks_per_sm <= occupancy(step, 128).blocks_per_sm
    for shared in range(0, 200 * 1024, 7777):
        assert occupancy(32, 128, shared).share <= occupancy(32, 128).share


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 64), "registers is 0, needs 1 to 255"),
        ((256, 64), "registers is 256, needs 1 to 255"),
        ((32, 1025), "threads is 1025, needs 1 to 1024"),
        ((32, 64.0), "threads is 64.0, needs 1 to 1024"),
        ((32, 64, -1), "shared_bytes is -1"),
        ((32, 64, 0, "sm_12"), "arch is 'sm_12', needs one of sm_80"),
        ((32, 64, 0, "sm_90", 0), "blocks is 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        occupancy(*arguments)


def test_grid_questions_need_a_grid():
    with pytest.raises(ValueError, match="blocks was not given"):
        _ = occupancy(32, 64).waves
    with pytest.raises(ValueError, match="no block fits"):
        _ = occupancy(255, 1024, blocks=5).waves
