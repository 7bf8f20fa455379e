"""Wrong answers to 24_chunked_rwkv7."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong

by_doubling = wrong(
    sum_too_short=(
        "Leaves out the last power.",
        edit("while L < A.shape[-1]:", "while 2 * L < A.shape[-1]:"),
    ),
    first_power_forgotten=(
        "The first factor is I instead of I + A.",
        edit("eye + A, A, 2", "eye, A, 2"),
    ),
    not_squared=(
        "The power grows by one each time instead of doubling.",
        edit("power @ power", "power @ A"),
    ),
    of_the_sum=(
        "Computes (I + A)⁻¹ instead of (I − A)⁻¹.",
        edit("eye + A, A, 2", "eye - A, A, 2"),
    ),
    up_to_sixteen=(
        "Stops at the 15th power, whatever C is.",
        edit("while L < A.shape[-1]:", "while L < 16:"),
    ),
    power_by_power=(
        "The right sum, but with one product for each power.",
        instead(
            """
            inverse = power = torch.eye(A.shape[-1]).expand_as(A)
            for _ in range(A.shape[-1]):
                power = power @ A
                inverse = inverse + power
            return inverse
            """
        ),
    ),
)

by_blocks = wrong(
    right_for_random_keys=(
        "By doubling.",
        instead(
            """
            eye = torch.eye(A.shape[-1])
            inverse, power, L = eye + A, A, 2
            while L < A.shape[-1]:
                power, L = power @ power, 2 * L
                inverse = inverse @ (eye + power)
            return inverse
            """
        ),
    ),
    halves_exchanged=(
        "Multiplies the two halves' inverses in the wrong order.",
        edit("right @ A[..., h:, :h] @ left", "left @ A[..., h:, :h] @ right"),
    ),
    across_once=(
        "Reads across the border only, without what is read within the halves.",
        edit("right @ A[..., h:, :h] @ left", "A[..., h:, :h]"),
    ),
    sign=(
        "Computes (I + A)⁻¹ instead of (I − A)⁻¹.",
        edit("right @ A[..., h:, :h] @ left", "-right @ A[..., h:, :h] @ left"),
    ),
    halves_of_its_own=(
        "Uses each half as it is instead of its inverse.",
        edit(
            "by_blocks(torch.stack([A[..., :h, :h], A[..., h:, h:]]))",
            "torch.eye(h) + A[..., :h, :h], torch.eye(h) + A[..., h:, h:]",
        ),
    ),
)

chunk = wrong(
    no_inverse=(
        "Leaves out the inverse: tokens do not read what earlier ones removed.",
        edit("inverse @ (a_start", "(a_start"),
    ),
    inverse_of_the_state_only=(
        "Applies the inverse to the state's part only, not to v's.",
        edit(
            "inverse @ (a_start @ s + (a_start @ k_start.mT).tril(-1) @ v)",
            "inverse @ (a_start @ s) + (a_start @ k_start.mT).tril(-1) @ v",
        ),
    ),
    reads_its_own_token=(
        "a reads its own token's k.",
        edit("(a_start @ k_start.mT).tril(-1)", "(a_start @ k_start.mT).tril()"),
    ),
    output_without_its_own=(
        "r does not read its own token.",
        edit("(r_start @ k_start.mT).tril()", "(r_start @ k_start.mT).tril(-1)"),
    ),
    decayed_once_too_often=(
        "a reads the state after its token's decay.",
        edit("a * before.exp()", "a * total.exp()"),
    ),
    state_without_z=(
        "Leaves b·z out of the state.",
        edit(" + b_end.mT @ z"),
    ),
    by_doubling=(
        "Inverts by doubling, which fails for keys that are all alike.",
        edit("by_blocks(", "by_doubling("),
    ),
    token_by_token=(
        "The right answer, but one token after another.",
        instead(
            """
            o = []
            for t in range(r.shape[-2]):
                z = a[..., t, None, :] @ s
                s = w[..., t, :, None].exp() * s + b[..., t, :, None] * z
                s = s + k[..., t, :, None] * v[..., t, None, :]
                o.append(r[..., t, None, :] @ s)
            return torch.cat(o, -2), s
            """
        ),
    ),
)

kernel = wrong(
    reads_its_own_token=(
        "a reads its own token's k.",
        edit("b_ak = tl.where(earlier, b_ak", "b_ak = tl.where(earlier | own, b_ak"),
    ),
    output_without_its_own=(
        "r does not read its own k·v.",
        edit("b_rk = tl.where(earlier | own, b_rk", "b_rk = tl.where(earlier, b_rk"),
    ),
    one_row_of_the_inverse=(
        "Rows of the inverse read b_ab instead of the rows above.",
        edit("tl.sum(b_row[:, None] * b_inverse, 0)", "b_row"),
    ),
    state_moved_first=(
        "The state decays before r reads it.",
        move("b_s *= tl.exp2(b_last)[:, None]", before="b_r_reads = (b_r * tl.exp2"),
        edit("tl.dot(b_r_reads, b_state,", "tl.dot(b_r_reads, b_s.to(b_v.dtype),"),
    ),
    z_of_the_first_chunk=(
        "Leaves out what a reads of the state.",
        edit(
            "b_y = tl.dot(b_a_reads, b_state, input_precision=PRECISION)",
            "b_y = tl.zeros([BT, N], tl.float32)",
        ),
    ),
    decayed_once_too_often=(
        "a reads the state after its token's decay.",
        edit(
            "b_a_reads = b_s.to(b_v.dtype), (b_a * tl.exp2(b_before))",
            "b_a_reads = b_s.to(b_v.dtype), (b_a * tl.exp2(b_total))",
        ),
    ),
    by_doubling=(
        "Computes the inverse from powers: few digits are right if tokens are alike.",
        edit(
            """
            b_row = tl.sum(tl.where(o_c[:, None] == i, b_ab, 0), 0)  # [BT]
            b_sum = tl.sum(b_row[:, None] * b_inverse, 0)
            b_inverse += tl.where(o_c[:, None] == i, b_sum[None, :], 0)
            """,
            """
            if (i & (i - 1)) == 0:
                b_inverse += tl.dot(b_inverse, b_ab, input_precision=PRECISION)
                b_ab = tl.dot(b_ab, b_ab, input_precision=PRECISION)
            """,
        ),
    ),
    tf32=(
        "Products lose 13 of 24 bits.",
        edit(
            "b_z = tl.dot(b_inverse, b_y, input_precision=PRECISION)",
            "b_z = tl.dot(b_inverse, b_y)",
        ),
    ),
    state_in_the_type_of_v=(
        "Keeps the state in the type of v, so bfloat16 loses what a chunk adds to a large state.",
        edit("b_s *= tl.exp2(b_last)[:, None]", "b_s = b_state * tl.exp2(b_last)[:, None]"),
    ),
    v_in_float32=(
        "Converts v to float32, so all products are computed in TF32, also for bfloat16 inputs.",
        edit("b_v = tl.load(v + o_x, m_t, 0)", "b_v = tl.load(v + o_x, m_t, 0).to(tl.float32)"),
    ),
)
