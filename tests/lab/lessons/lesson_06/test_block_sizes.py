"""Lesson 06's arithmetic against the course's calculator, and its pictures."""

import re

import pytest

from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.lessons.lesson_06.pictures import (
    on_their_way,
    places,
    sizes_to_try,
    sweep,
    sweep_gain,
)
from rwkv_lessons.lab.lessons.lesson_07.pictures import tiles
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save
from warplens.compiled.occupancy import occupancy

SHAPE = (8, 4096, 64, 64)


@pytest.mark.parametrize("block", range(32, 1025, 32))
def test_resident_warps_agrees_with_the_calculator(block):
    resident_warps = solutions("06_block_size").resident_warps
    for registers in range(16, 256):
        want = occupancy(registers, block).warps_per_sm
        assert resident_warps(registers, block) == want, registers


def test_places_says_what_fits_and_what_is_taken():
    assert str(places(131, (32, 256))) == (
        "blocks of 32 threads: 12 warps fit\nblocks of 256 threads: 8 warps fit"
    )
    # 1,024 warps on 132 SMs: the busiest has 8, in blocks of any size that fits.
    assert str(places(131, (128, 512), threads=32768)) == (
        "blocks of 128 threads: 8 of the 12 warps that fit\n"
        "blocks of 512 threads: a block needs 16 warps: none fits"
    )


def test_places_draws_one_square_per_slot():
    picture = places(131, (64,), threads=32768)
    squares = picture.figure.axes[0].patches
    taken = [s for s in squares if s.get_facecolor()[3] and s.get_edgecolor()[:3] != (1, 1, 1)]
    assert (len(squares), len(taken)) == (64, 8)


def test_sizes_can_be_tried_and_agree_with_the_calculator():
    shown = sizes_to_try()
    assert repr(shown).startswith("blocks of 32, 131 registers per thread, B=8: 8 of the 12 warps")
    pattern = r"blocks of (\d+), (\d+) .* B=\d+: (?:\d+ of the (\d+)|a block needs \d+ warps: none)"
    for said in str(shown).splitlines():
        block, registers, fit = re.match(pattern, said).groups()
        assert occupancy(int(registers), int(block)).warps_per_sm == int(fit or 0)
    assert len(shown._repr_html_()) < 300_000


def _record(folder, *rows):
    here = Provenance("NVIDIA H200", "0", "0", "2000-01-01", "abc", "a command", "a clock")
    save(Record("wkv5-ladder", here, rows), folder)


def test_sweep_reads_the_record(tmp_path, capsys):
    def row(block, **measured):
        return Measurement(f"06_block_size[{block}]", SHAPE, "float32", **measured)

    fast = {"median_ms": 4.0, "p20_ms": 3.9, "p80_ms": 4.1, "registers": 131}
    slow = fast | {"median_ms": 5.0}
    _record(tmp_path, row(32, **fast), row(128, **slow), row(512, problem="too large"))
    picture = sweep(folder=tmp_path)
    said = capsys.readouterr().out
    assert "4.00" in said and "not timed: too large" in said and "commit abc" in said
    assert str(picture) == "slowest / fastest: 1.25"
    assert sweep_gain(128, than=32, folder=tmp_path) == pytest.approx(0.8)
    assert sweep_gain(512, than=32, folder=tmp_path) is None


def test_sweep_without_a_record_says_so(tmp_path, capsys):
    assert sweep(folder=tmp_path) is None
    assert "not recorded" in capsys.readouterr().out
    assert sweep_gain(128, than=32, folder=tmp_path) is None


def test_tiles_counts_what_a_thread_reads():
    assert str(tiles(64, 8, 8)) == (
        "a column: 64 elements, 129 values to load per token\n"
        "a tile: 64 elements, 24 values to load per token"
    )


@pytest.mark.parametrize(
    "latency, said, megabytes, requests",
    [
        ({}, "500 ns, say (not recorded yet)", "2.00 MB", 39),
        ({"memory_latency_ns": 750.0}, "750 ns, as recorded", "3.00 MB", 59),
    ],
)
def test_littles_law_with_the_recorded_latency(tmp_path, latency, said, megabytes, requests):
    where = Provenance("Test GPU", "1.0", "0.0", "2000-01-01", "none", "made up", "none")
    save(Record("ceilings", where, (), {"copy_bytes_per_s": 4e12} | latency), tmp_path)
    text = on_their_way(sms=100, gpu="Test GPU", folder=tmp_path)
    assert said in text and f"in flight: {megabytes}" in text
    assert f"that is {requests} requests" in text  # bytes / 100 SMs / 512
