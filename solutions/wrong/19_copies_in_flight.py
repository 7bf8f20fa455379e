"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

stage_and_phase = wrong(
    counts_all_turns=(
        "The number of turns, not whether it is odd.",
        edit("t // stages % 2", "t // stages"),
    ),
    flips_with_each_tile=(
        "The phase flips with each tile, not with each turn of its stage.",
        edit("t // stages % 2", "t % 2"),
    ),
    in_blocks=(
        "Neighbouring tiles share a stage.",
        edit("t % stages, t // stages % 2", "t // stages, t % stages % 2"),
    ),
    always_the_first=(
        "Every wait is for phase 0.",
        edit("t // stages % 2", "0"),
    ),
)

one_tile = wrong(
    never_announced=(
        "The bytes are not announced: the wait never ends.",
        edit("mbarrier.expect(ready, BYTES)\n"),
    ),
    half_announced=(
        "Half of the bytes are announced.",
        edit("mbarrier.expect(ready, BYTES)", "mbarrier.expect(ready, BYTES // 2)"),
    ),
    the_other_phase=(
        "The wait is for phase 1, and returns at once.",
        edit("mbarrier.wait(ready, 0)", "mbarrier.wait(ready, 1)"),
    ),
    not_waited_for=(
        "The tile is read without a wait.",
        edit("mbarrier.wait(ready, 0)\n"),
    ),
    no_fence=(
        "The copy out may not see what threads wrote.",
        edit(
            """
            s_x.store(b_w.to(gl.bfloat16))
            fence_async_shared()
            """,
            "s_x.store(b_w.to(gl.bfloat16))",
        ),
    ),
    fence_too_early=(
        "The fence stands before the write.",
        edit(
            """
            s_x.store(b_w.to(gl.bfloat16))
            fence_async_shared()
            """,
            """
            fence_async_shared()
            s_x.store(b_w.to(gl.bfloat16))
            """,
        ),
    ),
    left_at_the_end=(
        "The program ends while its tile is stored.",
        edit("tma.store_wait(0)\n"),
    ),
    what_came_in=(
        "The tile goes out as it came in.",
        edit("s_x.store(b_w.to(gl.bfloat16))\n"),
    ),
)

kernel = wrong(
    right_for_two_tiles=(
        "Every wait is for phase 0: from the third tile on they return at once.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(i), 0)"),
    ),
    flips_with_each_tile=(
        "The phase of the tile, not of its stage.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(i), t // C % 2)"),
    ),
    waits_for_the_next=(
        "The wait is for the tile that was just asked for.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(1 - i), phase)"),
    ),
    reads_the_other_stage=(
        "The tile that is on its way is read.",
        edit("s_x.index(i).load(ROWS)", "s_x.index(1 - i).load(ROWS)"),
    ),
    one_tile_too_many=(
        "A tile is announced after the last.",
        edit("BYTES, pred=more", "BYTES"),
    ),
    one_copy_too_many=(
        "A tile is copied after the last, and nobody announced it.",
        edit("s_x.index(1 - i), pred=more", "s_x.index(1 - i)"),
    ),
    into_the_tile_that_is_read=(
        "The next tile comes into the stage of this one.",
        edit("BYTES, pred=more", "BYTES * 0, pred=more"),
        edit("ready.index(1 - i), s_x.index(1 - i)", "ready.index(1 - i), s_x.index(i)"),
    ),
    overwritten_while_stored=(
        "s_w is written while the copy out still reads it.",
        edit(
            """
            tma.store_wait(0)
            s_w.store(b_w.to(gl.bfloat16))
            """,
            "s_w.store(b_w.to(gl.bfloat16))",
        ),
    ),
    no_fence=(
        "The copy out may not see what threads wrote.",
        edit(
            """
            s_w.store(b_w.to(gl.bfloat16))
            fence_async_shared()
            """,
            "s_w.store(b_w.to(gl.bfloat16))",
        ),
    ),
    one_after_another=(
        "Right, but nothing is in flight while threads compute.",
        edit(
            """
            mbarrier.expect(ready.index(0), BYTES)
            tma.async_copy_global_to_shared(raw, [row, column], ready.index(0), s_x.index(0))
            """,
            "",
        ),
        edit("more = t + C < T\n"),
        edit("after = [row + t + C, column]", "after = [row + t, column]"),
        edit("ready.index(1 - i), BYTES, pred=more", "ready.index(i), BYTES"),
        edit(
            "raw, after, ready.index(1 - i), s_x.index(1 - i), pred=more",
            "raw, after, ready.index(i), s_x.index(i)",
        ),
    ),
    rows_of_one_sequence=(
        "Every batch row reads the first one's tokens.",
        edit("gl.program_id(0) // H * T, gl", "gl.program_id(0) // H * 0, gl"),
    ),
)
