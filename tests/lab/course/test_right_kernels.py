"""Right kernels pass, however they are spelled, and what could be less is told."""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate, rows_of
from rwkv_lessons.lab.course.wrong_answers import edit, instead
from rwkv_lessons.lab.evidence.claims import ATOMICS, FEW_BYTES, at_most, no_spills

ROWS, SUMS = "12_first_tiles.softmax_rows", "12_first_tiles.column_sums"


def typed(id, *edits):
    text = exercises.solved(id) + "\n"
    for change in edits:
        text = change.apply(text)
    return exercises.defined(id, text, f"<{id} {hash(text)}>")


def test_the_last_step_of_lesson_21_passes():
    id = "21_the_finished_kernel.kernel"
    kernel = exercises.solutions("21_the_finished_kernel").producer_and_consumer
    result = evaluate(id, kernel)
    assert result.passed, str(result)


@pytest.mark.parametrize(
    "id, edits",
    [
        ("12_first_tiles.softmax", edit("tl.exp(", "tl.extra.cuda.libdevice.exp(")),
        (SUMS, edit("in range(0, M, BM)", "in tl.range(0, M, BM)")),
        (SUMS, edit("in range(0, M, BM)", "in tl.range(0, M, BM, num_stages=3)")),
        (
            "12_first_tiles.add",
            instead("""
                at = [tl.program_id(0) * BLOCK]
                b_x = tl.make_tensor_descriptor(x, [n], [1], [BLOCK]).load(at)
                b_y = tl.make_tensor_descriptor(y, [n], [1], [BLOCK]).load(at)
                tl.make_tensor_descriptor(out, [n], [1], [BLOCK]).store(at, b_x + b_y)
            """),
        ),
        (ROWS, edit("BLOCK=", "num_warps=8, BLOCK=2 * ")),
    ],
    ids=["libdevice", "tl.range", "stages", "descriptors", "a larger BLOCK"],
)
def test_another_spelling_passes(id, edits):
    result = evaluate(id, typed(id, edits))
    assert result.passed, str(result)


def test_a_larger_block_is_told_of_and_a_smaller_one_refused():
    (row, *_) = evaluate(ROWS, typed(ROWS, edit("BLOCK=", "BLOCK=2 * "))).rows
    assert row.details == ("BLOCK: 16 for rows of 8, where 8 lanes are enough",)
    (row, *_) = evaluate(ROWS, typed(ROWS, edit("next_power_of_2(N)", "cdiv(N, 2)"))).rows
    assert row.details[0].startswith("BLOCK: 4, want 8")


class Code:
    """Machine code with these instructions."""

    def __init__(self, spilled=0, **counts):
        self.spill_stores = self.spill_loads = spilled
        self.counts = counts

    def count(self, opcode):
        return self.counts.get(opcode, 0)


def test_a_few_bytes_of_spills_are_told_and_pass():
    claim = no_spills()
    assert (
        claim.holds(Code(8))
        and claim.warning(Code(8)) == "8 bytes are spilled; none would be better"
    )
    assert claim.holds(Code()) and not claim.warning(Code())
    assert not claim.holds(Code(FEW_BYTES + 4))


def test_publishing_a_descriptor_is_no_atomic_of_the_kernels():
    claim = at_most(0, *ATOMICS)
    assert claim.holds(Code(ATOMG=3, UTMACCTL=3)) and not claim.holds(Code(ATOMG=4, UTMACCTL=3))


def test_reads_within_their_room_are_told_of():
    id = "12_first_tiles.softmax"
    few = 'tl.load(x + i_m * stride + o_n, (o_n < 8) & m_n, -float("inf"))'
    again = edit("b_e = tl.exp", f"b_x = tl.maximum(b_x, {few})\nb_e = tl.exp")
    rows = rows_of(exercises.load(id), typed(id, again))
    traffic = next(row for row in rows if row.kind == "traffic")
    assert traffic.details[0].startswith("more than needed: x read")
