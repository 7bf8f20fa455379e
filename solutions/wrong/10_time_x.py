"""Wrong answers to 10_time_x."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

launch = wrong(
    a_thread_for_every_token=(
        "Long rows get more threads than a block can have.",
        edit("min(T, tile)", "T"),
    ),
    half_a_warp_forgotten=(
        "Rounds down, so the last outputs of a row have no thread.",
        edit("ceil_div(min(T, tile), 32 * outputs)", "max(1, min(T, tile) // (32 * outputs))"),
    ),
    last_thread_forgotten=(
        "Rounds down, so a thread with fewer outputs than the others is left out.",
        edit("ceil_div(min(T, tile), 32 * outputs)", "ceil_div(min(T, tile) // outputs, 32)"),
    ),
    rows_rounded_down=(
        "Leaves out the last group of batch rows if it is not full.",
        edit("ceil_div(B, rows)", "max(1, B // rows)"),
    ),
    one_block_a_row=(
        "Counts blocks as if each row had one.",
        edit("ceil_div(B, rows) * C", "B * C"),
    ),
    not_whole_warps=(
        "Launches exactly as many threads as there is work for, not whole warps.",
        edit("ceil_div(min(T, tile), 32 * outputs)", "ceil_div(min(T, tile), outputs)"),
        edit("32 * warps", "warps"),
    ),
)

naive = wrong(
    last_weight_for_the_first=(
        "Uses the weights in the wrong order: the last one for the first token.",
        edit("* k[b, c, u]", "* k[b, c, t - u]"),
    ),
    itself_left_out=(
        "A token does not read itself.",
        edit("while u <= t:", "while u < t:"),
    ),
    sees_the_future=(
        "Adds all tokens, later ones too, with whatever weight is at that index.",
        edit("while u <= t:", "while u < T:"),
        edit("w_t[u] *", "w[c, (T - 1 - t + u) % T] *"),
    ),
    weights_of_the_batch_row=(
        "Uses the weights of channel b.",
        edit("w[c, T - 1 - t :]", "w[b % w.shape[0], T - 1 - t :]"),
    ),
    one_sum_for_the_thread=(
        "The sum is not reset to 0 for the next output of the thread.",
        edit("o_t, u = float32(0), 0", "u = 0"),
        edit("while t < T:", "o_t = float32(0)\nwhile t < T:"),
    ),
    right_up_to_1024=(
        "One output per thread, so the rest of a longer row is never written.",
        edit("t += cuda.blockDim.x", "t += T"),
    ),
)

_first_tile_only = (
    "Every tile adds only its own tokens, not those of earlier tiles.",
    edit("for u0 in range(0, t0 + 1, TILE):", "for u0 in range(t0, t0 + 1, TILE):"),
)

shared = wrong(
    reads_too_early=(
        "No barrier between filling shared memory and reading it.",
        edit("cuda.syncthreads()  # everything is there"),
    ),
    fills_too_early=(
        "No barrier before shared memory is filled again.",
        edit("cuda.syncthreads()  # everyone has read what is overwritten now"),
    ),
    window_stands_still=(
        "Uses the weights of the first chunk for all chunks.",
        edit("T - 1 - (t0 - u0) - TILE", "T - 1 - TILE"),
    ),
    weights_beyond_the_row=(
        "Where no weight exists, reads one of another channel.",
        edit(
            "i = max(0, -first) + x\nwhile i < min(WINDOW, T - first):", "i = x\nwhile i < WINDOW:"
        ),
        edit("w[c, first + i]", "w[c, (first + i) % T]"),
        edit("min(TILE, t0 - u0 + x + 1)", "min(TILE, T - u0)"),
    ),
    global_all_the_same=(
        "Fills shared memory, then reads k from global memory.",
        edit("* s_k[u]", "* k[b, c, min(u0 + u, T - 1)]"),
    ),
    right_up_to_1024=_first_tile_only,
)

four = wrong(
    weights_one_off=(
        "The window starts one weight too far on.",
        edit("w8[4 + m - n]", "w8[3 + m - n]"),
    ),
    four_floats_by_hand=(
        "Reads four bytes at a time.",
        edit("k4 = load4(s_k, (u,))", "k4 = s_k[u], s_k[u + 1], s_k[u + 2], s_k[u + 3]"),
        edit("    w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))\n"),
        edit("w8[4 + m - n]", "s_w[first + 4 + m - n]"),
    ),
    triangle_left_out=(
        "The loop stops before the group of tokens that contains the outputs.",
        edit("t0 - u0 + 4 * x + 4), 4", "t0 - u0 + 4 * x), 4"),
    ),
    multiples_of_four_only=(
        "Writes outputs in whole groups, so the last ones of a row are left out.",
        edit("if t0 + 4 * x + n < T:", "if t0 + 4 * x + 3 < T:"),
    ),
    no_zeros=(
        "The window has other weights instead of zeros, so tokens read later ones.",
        edit("at < T else float32(0)  # 0 for u after t", "at < T else w[c, T - 1]"),
    ),
    sums_go_on=(
        "The sums are not reset for the next tile.",
        edit("o_t[n] = 0", "o_t[n] = o_t[n] if t0 else 0"),
    ),
    weights_not_aligned=(
        "Declares the weights without alignment=16.",
        edit(
            "s_w = cuda.shared.array(WINDOW, float32, alignment=16)",
            "s_w = cuda.shared.array(WINDOW, float32)",
        ),
    ),
    first_tile_only=_first_tile_only,
)

grouped = wrong(
    rows_of_the_first=(
        "All rows of the group use the tokens of the first.",
        edit("k[b0 + r, c, u0 + i]", "k[b0, c, u0 + i]"),
    ),
    groups_of_eight_only=(
        "Leaves out the last group if it is not full.",
        edit("if b0 + r < B and t0", "if b0 + ROWS <= B and t0"),
    ),
    blocks_are_rows=(
        "Uses the block's number as the number of a row, not of a group.",
        edit("cuda.blockIdx.x // C * ROWS", "cuda.blockIdx.x // C"),
    ),
    weights_for_every_row=(
        "Reads the weights again for each row.",
        edit("    first = TILE - 4 * x + u - 4\n"),
        edit("    w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))\n"),
        edit(
            "k4 = load4(s_k, (r, u))",
            """
            k4 = load4(s_k, (r, u))
            first = TILE - 4 * x + u - 4
            w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))
            """,
        ),
    ),
    one_row_of_sums=(
        "All rows add to the sums of the first.",
        edit("o_t[r, n] += w8[4 + m - n] * k4[m]", "o_t[0, n] += w8[4 + m - n] * k4[m]"),
    ),
    first_tile_only=_first_tile_only,
)

balanced = wrong(
    not_paired=(
        "Gives a thread two neighbouring groups: right, but as uneven as before.",
        edit("t = 4 * (last - x) if part == 0 else 4 * x", "t = 8 * x + 4 * part"),
    ),
    right_for_whole_tiles=(
        "Takes the last group of a whole tile, even where T ends earlier.",
        edit("(min(TILE, T - t0) + 3) // 4 - 1", "TILE // 4 - 1"),
        edit("end = min(TILE, t0 - u0 + t + 4)", "end = min(TILE, t0 - u0 + t + 4, T - u0)"),
    ),
    middle_left_out=(
        "With an odd number of groups, no thread has the middle one.",
        edit("if 2 * x + part <= last else 0", "if 2 * x < last else 0"),
    ),
    returns_before_the_barrier=(
        "Threads without outputs return and never reach the barriers.",
        edit(
            "# group of four outputs in this tile",
            "# group of four outputs in this tile\nif 2 * x > last:\n    return",
        ),
    ),
    starts_again=(
        "The sums start from 0 with every chunk of tokens, so only the last one counts.",
        edit("end > 0 and u0 > 0 and b0", "end < 0 and b0"),
    ),
    weights_of_the_other=(
        "Both groups use the weights of the early one.",
        edit("first = TILE - t + u - 4", "first = TILE - 4 * x + u - 4"),
    ),
    first_tile_only=_first_tile_only,
)

toeplitz = wrong(
    lower_and_upper=(
        "Weights of later tokens are not zero: the index wraps round to other distances.",
        edit("m_w = (distance >= 0) & (distance < T)", "m_w = distance < T"),
        edit("T - 1 - distance, m_w", "(2 * T - 1 - distance) % T, m_w"),
    ),
    transposed=(
        "The tile of weights is transposed.",
        edit("distance = o_t[:, None] - o_u[None, :]", "distance = o_t[None, :] - o_u[:, None]"),
    ),
    diagonal_tile_only=(
        "Multiplies only the tile of tokens that contains the outputs.",
        edit("for i_u in range(i_t + 1):", "for i_u in range(i_t, i_t + 1):"),
    ),
    all_tiles=(
        "Multiplies tiles of later tokens as well, with zeros: right, at twice the work.",
        edit("for i_u in range(i_t + 1):", "for i_u in range(tiles):"),
    ),
    own_tile_left_out=(
        "Leaves out the tile on the diagonal.",
        edit("for i_u in range(i_t + 1):", "for i_u in range(i_t):"),
    ),
    whole_tiles_only=(
        "Stores outputs in whole tiles, which overwrites the next row beyond T.",
        edit("m_b & (o_t < T)[:, None])", "m_b & (o_t >= 0)[:, None])"),
    ),
    batch_rows_of_the_first=(
        "All groups compute the batch rows of the first.",
        edit("o_b = tl.program_id(1) * BB + tl.arange(0, BB)", "o_b = tl.arange(0, BB)"),
    ),
    rows_without_channels=(
        "Computes addresses as if there were one channel.",
        edit("(o_b[None, :] * C + i_c) * T", "(o_b[None, :] + i_c) * T"),
    ),
    rounded_to_tf32=(
        "Truncates float32 operands to TF32.",
        edit(", input_precision=PRECISION"),
    ),
    no_tensor_cores=(
        "The right answer, but summed without the tensor cores.",
        edit(
            "b_o += tl.dot(b_w, b_k, input_precision=PRECISION)",
            "b_o += tl.sum(b_w[:, :, None].to(tl.float32) * b_k[None, :, :].to(tl.float32), 1)",
        ),
    ),
)
