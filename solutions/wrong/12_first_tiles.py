"""Wrong answers to 12_first_tiles."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

add = wrong(
    always_the_first_block=(
        "Every program processes the first elements.",
        edit("tl.program_id(0) * BLOCK + tl.arange", "tl.arange"),
    ),
    everything_in_one_program=(
        "Program 0 does all the work, the others do nothing.",
        edit(
            """
            o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            m = o < n
            b_x = tl.load(x + o, m, 0)
            b_y = tl.load(y + o, m, 0)
            tl.store(out + o, b_x + b_y, m)
            """,
            """
            if tl.program_id(0) == 0:
                for first in range(0, n, BLOCK):
                    o = first + tl.arange(0, BLOCK)
                    m = o < n
                    b_x = tl.load(x + o, m, 0)
                    b_y = tl.load(y + o, m, 0)
                    tl.store(out + o, b_x + b_y, m)
            """,
        ),
    ),
    one_too_far=(
        "The mask admits one element too many.",
        edit("o < n", "o <= n"),
    ),
    programs_overlap=(
        "A program starts one element after the previous one, not one block.",
        edit("tl.program_id(0) * BLOCK", "tl.program_id(0)"),
    ),
    right_for_whole_blocks=(
        "The store has no mask and writes past the end of out.",
        edit("b_x + b_y, m)", "b_x + b_y)"),
    ),
    stores_a_product=(
        "Multiplies where it should add.",
        edit("b_x + b_y", "b_x * b_y"),
    ),
)

softmax = wrong(
    maximum_not_subtracted=(
        "The maximum is not subtracted: exp overflows from 89 on.",
        edit("b_x - tl.max(b_x, 0)", "b_x"),
    ),
    reads_the_row_twice=(
        "Reads the row again for the sum.",
        edit(
            "b_e / tl.sum(b_e, 0)",
            'b_e / tl.sum(tl.exp(tl.load(x + i_m * stride + o_n, m_n, -float("inf")) - '
            "tl.max(b_x, 0)), 0)",
        ),
    ),
    padded_sum_only=(
        "The padding is left out of the sum, but a row of negative values gets 0 as its maximum.",
        edit('-float("inf")', "0"),
        edit("tl.exp(b_x - tl.max(b_x, 0))", "tl.where(m_n, tl.exp(b_x - tl.max(b_x, 0)), 0)"),
    ),
    a_number_for_infinity=(
        "The lanes past the end are -1000, which is larger than a row far below zero.",
        edit('-float("inf")', "-1000.0"),
    ),
    right_for_powers_of_two=(
        "The lanes past the end are 0, which counts in the sum and in the maximum.",
        edit('-float("inf")', "0"),
    ),
    rows_without_a_gap=(
        "Assumes that the rows of x follow one another.",
        edit("i_m * stride", "i_m * N"),
    ),
    store_unmasked=(
        "The store has no mask and writes into the next row.",
        edit("tl.sum(b_e, 0), m_n)", "tl.sum(b_e, 0))"),
    ),
)

softmax_rows = wrong(
    block_of_any_length=(
        "BLOCK is not a power of two.",
        edit("triton.next_power_of_2(N)", "N"),
    ),
    block_of_1024=(
        "Rows longer than 1,024 are cut off.",
        edit("triton.next_power_of_2(N)", "1024"),
    ),
    one_program_short=(
        "The last row has no program.",
        edit("kernel[(M,)]", "kernel[(max(M - 1, 1),)]"),
    ),
    program_per_element=(
        "Launches a program for each element of a row, not for each row.",
        edit("kernel[(M,)]", "kernel[(N,)]"),
    ),
    rows_without_a_gap=(
        "Assumes that the rows of x follow one another.",
        edit("x.stride(0), N", "N, N"),
    ),
    torch_does_it=(
        "Launches nothing: torch computes the answer.",
        edit(
            """
            y = torch.empty(M, N, device=x.device)
            kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
            """,
            "y = torch.softmax(x, 1)",
        ),
    ),
)

column_sums = wrong(
    columns_unmasked=(
        "The columns past the end are not masked.",
        edit(" & m_n[None, :]"),
    ),
    keeps_the_last_tile=(
        "Forgets all tiles before the last one.",
        edit("b_sums += tl.sum(b_x, 0)", "b_sums = tl.sum(b_x, 0)"),
    ),
    rows_unmasked=(
        "The rows past the end are not masked.",
        edit("(o_m < M)[:, None] & m_n[None, :]", "m_n[None, :]"),
    ),
    rows_without_a_gap=(
        "Assumes that the rows of x follow one another.",
        edit("o_m[:, None] * stride", "o_m[:, None] * N"),
    ),
    same_rows_again=(
        "Every iteration reads the first rows.",
        edit("o_m = first + tl.arange(0, BM)", "o_m = tl.arange(0, BM)"),
    ),
    sums_along_the_row=(
        "The sum runs along the rows of the tile, not down its columns.",
        edit("tl.sum(b_x, 0)", "tl.sum(b_x, 1)"),
    ),
)
