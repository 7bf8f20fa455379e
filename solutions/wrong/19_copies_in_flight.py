"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

stage_and_phase = wrong(
    counts_all_turns=(
        "Returns the number of uses, not whether it is odd.",
        edit("t // stages % 2", "t // stages"),
    ),
    flips_with_each_tile=(
        "The phase flips with each tile instead of with each use of its stage.",
        edit("t // stages % 2", "t % 2"),
    ),
    in_blocks=(
        "Neighbouring tiles share a stage.",
        edit("t % stages, t // stages % 2", "t // stages, t % stages % 2"),
    ),
    always_the_first=(
        "Every wait names phase 0.",
        edit("t // stages % 2", "0"),
    ),
)

one_tile = wrong(
    never_announced=(
        "The bytes are not announced, so the wait never ends.",
        edit("mbarrier.expect(ready, BYTES)\n"),
    ),
    half_announced=(
        "Only half of the bytes are announced.",
        edit("mbarrier.expect(ready, BYTES)", "mbarrier.expect(ready, BYTES // 2)"),
    ),
    the_other_phase=(
        "The wait names phase 1 and returns at once.",
        edit("mbarrier.wait(ready, 0)", "mbarrier.wait(ready, 1)"),
    ),
    not_waited_for=(
        "The tile is read without a wait.",
        edit("mbarrier.wait(ready, 0)\n"),
    ),
    no_fence=(
        "Without a fence, the copy out may not see what the threads wrote.",
        edit(
            """
            s_x.store(b_w.to(gl.bfloat16))
            fence_async_shared()
            """,
            "s_x.store(b_w.to(gl.bfloat16))",
        ),
    ),
    fence_too_early=(
        "The fence stands before the write instead of after it.",
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
        "The program ends while its tile is still being stored.",
        edit("tma.store_wait(0)\n"),
    ),
    what_came_in=(
        "The tile goes out unchanged.",
        edit("s_x.store(b_w.to(gl.bfloat16))\n"),
    ),
)

kernel = wrong(
    right_for_two_tiles=(
        "Every wait names phase 0, so from the third tile on it returns at once.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(i), 0)"),
    ),
    flips_with_each_tile=(
        "The phase flips with each tile instead of with each use of its stage.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(i), t // C % 2)"),
    ),
    waits_for_the_next=(
        "The wait is for the next tile, whose copy has just been started.",
        edit("mbarrier.wait(ready.index(i), phase)", "mbarrier.wait(ready.index(1 - i), phase)"),
    ),
    reads_the_other_stage=(
        "Reads the next tile, which is still in flight.",
        edit("s_x.index(i).load(ROWS)", "s_x.index(1 - i).load(ROWS)"),
    ),
    one_tile_too_many=(
        "Announces one tile after the last.",
        edit("BYTES, pred=more", "BYTES"),
    ),
    one_copy_too_many=(
        "Copies one tile after the last, without announcing it.",
        edit("s_x.index(1 - i), pred=more", "s_x.index(1 - i)"),
    ),
    into_the_tile_that_is_read=(
        "The next tile is copied into this tile's stage.",
        edit("BYTES, pred=more", "BYTES * 0, pred=more"),
        edit("ready.index(1 - i), s_x.index(1 - i)", "ready.index(1 - i), s_x.index(i)"),
    ),
    overwritten_while_stored=(
        "s_w is written while the copy out is still reading it.",
        edit(
            """
            tma.store_wait(0)
            s_w.store(b_w.to(gl.bfloat16))
            """,
            "s_w.store(b_w.to(gl.bfloat16))",
        ),
    ),
    no_fence=(
        "Without a fence, the copy out may not see what the threads wrote.",
        edit(
            """
            s_w.store(b_w.to(gl.bfloat16))
            fence_async_shared()
            """,
            "s_w.store(b_w.to(gl.bfloat16))",
        ),
    ),
    one_after_another=(
        "Correct, but no copy is in flight while the threads compute.",
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
        "Every batch row reads the first row's tokens.",
        edit("gl.program_id(0) // H * T, gl", "gl.program_id(0) // H * 0, gl"),
    ),
)
