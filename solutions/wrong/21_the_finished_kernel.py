"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

split = wrong(
    low_is_left_in_float32=(
        "The low part is not rounded to bfloat16.",
        edit("(x - high.float()).bfloat16()", "x - high.float()"),
    ),
    high_twice=(
        "The low part is x rounded again.",
        edit("(x - high.float()).bfloat16()", "x.bfloat16()"),
    ),
    low_first=(
        "Returns low, high instead of high, low.",
        edit(
            "return high, (x - high.float()).bfloat16()",
            "return (x - high.float()).bfloat16(), high",
        ),
    ),
    halves=(
        "Each part is half of x: the same 8 bits twice.",
        edit("high = x.bfloat16()", "high = (x / 2).bfloat16()"),
        edit("(x - high.float()).bfloat16()", "high"),
    ),
    other_sign=(
        "Returns high - x instead of x - high.",
        edit("x - high.float()", "high.float() - x"),
    ),
    float16=(
        "Goes through float16, which ends at 65,504.",
        edit("high = x.bfloat16()", "high = x.half().bfloat16()"),
    ),
)

let_go = wrong(
    first_one=(
        "Lets all products after the first needed one keep running.",
        edit("max((n for", "min((n for"),
    ),
    one_too_many=(
        "Lets the last needed product keep running as well.",
        edit("return len(started) - last", "return len(started) - last + 1"),
    ),
    counts_the_others=(
        "Counts the products that are not needed, wherever they stand.",
        edit("return len(started) - last", "return sum(name not in needed for name in started)"),
    ),
    waits_for_all=(
        "Lets no product keep running.",
        edit("return len(started) - last", "return 0"),
    ),
)

kernel = wrong(
    eight_bits_of_r=(
        "The scores read 8 bits of r.",
        edit("b_a = warpgroup_mma(r_low, high, b_a, is_async=True)\n"),
    ),
    eight_bits_of_k=(
        "The scores read 8 bits of k.",
        edit("b_a = warpgroup_mma(r_high, low, b_a, is_async=True)\n"),
    ),
    state_of_eight_bits=(
        "The state gets 8 bits of k.",
        edit("b_s = warpgroup_mma(low, s_v.index(i), b_s, is_async=True)\n"),
        edit("warpgroup_mma_wait(2, deps=(b_a, r", "warpgroup_mma_wait(1, deps=(b_a, r"),
    ),
    right_to_eight_bits=(
        "The state is read with 8 bits of r.",
        edit("b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)\n"),
    ),
    low_over_high=(
        "Both parts of k go to the same tile.",
        edit("s_low.store(k_low)", "s_k.index(i).store(k_low)"),
    ),
    fence_too_early=(
        "S is written after the fence.",
        edit(
            """
            s_state.store(b_s.to(gl.bfloat16))
            fence_async_shared()
            """,
            """
            fence_async_shared()
            s_state.store(b_s.to(gl.bfloat16))
            """,
        ),
    ),
    starts_over=(
        "The scores' second product replaces the first instead of adding to it.",
        edit(
            "warpgroup_mma(r_low, high, b_a, is_async=True)",
            "warpgroup_mma(r_low, high, zeros, use_acc=False, is_async=True)",
        ),
    ),
    scores_too_early=(
        "The wait lets five products keep running.",
        edit("warpgroup_mma_wait(2, deps=(b_a, r", "warpgroup_mma_wait(5, deps=(b_a, r"),
    ),
    r_given_away=(
        "No wait names r.",
        edit(
            "b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))",
            "b_a = warpgroup_mma_wait(2, deps=(b_a,))",
        ),
    ),
    waits_in_between=(
        "Correct, but waits for the scores before it starts the other products.",
        edit(
            "b_o = warpgroup_mma(r_high, s_state",
            "b_a = warpgroup_mma_wait(0, deps=(b_a,))\nb_o = warpgroup_mma(r_high, s_state",
        ),
        edit(
            "b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))",
            "b_o, r_high, r_low = warpgroup_mma_wait(2, deps=(b_o, r_high, r_low))",
        ),
    ),
)
