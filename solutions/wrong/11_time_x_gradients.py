"""Wrong answers to 11_time_x_gradients."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

dk_naive = wrong(
    forward_again=(
        "Adds the outputs before the token, as the forward pass adds the tokens before an output.",
        edit("while d < T - u:", "while d <= u:"),
        edit("* do_u[d]", "* do[b, c, u - d]"),
    ),
    itself_left_out=(
        "Leaves out the output at the token itself.",
        edit("dk_u, d = float32(0), 0", "dk_u, d = float32(0), 1"),
    ),
    weights_in_order=(
        "Reads the weights in the wrong order.",
        edit("w[c, ::-1]", "w[c]"),
    ),
    channel_zero=(
        "All channels use the weights of the first.",
        edit("w[c, ::-1]", "w[0, ::-1]"),
    ),
    one_output_a_thread=(
        "If a row is longer than the block, the rest is never written.",
        edit("u += cuda.blockDim.x", "u += T"),
    ),
)

dw_naive = wrong(
    one_batch_row=(
        "Adds only the first batch row.",
        edit("range(B)", "range(1)"),
    ),
    last_batch_row=(
        "The sum starts again with every batch row.",
        edit(
            "do_d, u = do[b, c, d:], 0",
            "dw_d = float32(0)\ndo_d, u = do[b, c, d:], 0",
        ),
    ),
    from_the_first_token=(
        "Pairs before the start of the row wrap around to its end.",
        edit("while u < T - d:", "while u < T:"),
        edit("do_d[u] *", "do[b, c, (u + d) % T] *"),
    ),
    distance_as_index=(
        "Writes distance d to element d.",
        edit("dw[c, T - 1 - d]", "dw[c, d]"),
    ),
    one_pair_short=(
        "Leaves out the last token.",
        edit("while u < T - d:", "while u < T - d - 1:"),
    ),
)

dw_shared = wrong(
    reads_too_early=(
        "No barrier between filling shared memory and reading it.",
        edit("cuda.syncthreads()  # everything is there"),
    ),
    fills_too_early=(
        "No barrier before shared memory is filled again.",
        edit("cuda.syncthreads()  # everyone has read what is overwritten now"),
    ),
    window_stands_still=(
        "The window of do does not move with the chunk of tokens.",
        edit("i, first = x, u0 + d0", "i, first = x, d0"),
    ),
    a_mean_of_its_own=(
        "The sum starts again with every batch row.",
        edit(
            "for u0 in range(0, T - d0, TILE):",
            "dw_d = float32(0)\nfor u0 in range(0, T - d0, TILE):",
        ),
    ),
    right_up_to_1024=(
        "Each tile of distances meets only one chunk of tokens.",
        edit("for u0 in range(0, T - d0, TILE):", "for u0 in range(0, 1, TILE):"),
    ),
    global_all_the_same=(
        "Fills shared memory, then reads k from global memory.",
        edit("* s_k[u]", "* k[b, c, u0 + u]"),
    ),
)

dk_balanced = wrong(
    read_backwards_only=(
        "do is read from the end, and dk is written from the start.",
        edit("so_far = dk[b0 + r, c, T - 1 - (t0 + t + n)]", "so_far = dk[b0 + r, c, t0 + t + n]"),
        edit("dk[b0 + r, c, T - 1 - (t0 + t + n)] = sums", "dk[b0 + r, c, t0 + t + n] = sums"),
    ),
    nothing_reversed=(
        "Computes the forward sum of do.",
        edit("T - 1 - (u0 + i)]", "u0 + i]"),
        edit("so_far = dk[b0 + r, c, T - 1 - (t0 + t + n)]", "so_far = dk[b0 + r, c, t0 + t + n]"),
        edit("dk[b0 + r, c, T - 1 - (t0 + t + n)] = sums", "dk[b0 + r, c, t0 + t + n] = sums"),
    ),
    weights_reversed_too=(
        "Reverses the weights as well.",
        edit("w[c, at] if", "w[c, T - 1 - at] if"),
    ),
    not_paired=(
        "Gives a thread two neighbouring groups: right, but uneven.",
        edit("t = 4 * (last - x) if part == 0 else 4 * x", "t = 8 * x + 4 * part"),
    ),
    starts_again=(
        "The sums start from 0 with every chunk, so only the last one counts.",
        edit("end > 0 and u0 > 0 and b0", "end < 0 and b0"),
    ),
)

dw_balanced = wrong(
    not_paired=(
        "Gives a thread two neighbouring groups: right, but uneven.",
        edit("d_near, d_far = 4 * x, 4 * (last - x)", "d_near, d_far = 8 * x, 8 * x + 4"),
    ),
    middle_left_out=(
        "With an odd number of groups, no thread has the middle one.",
        edit("if d_near <= d_far:", "if d_near < d_far:  # the near one"),
        edit("if d_near <= d_far and d0", "if d_near < d_far and d0"),
    ),
    distances_one_off=(
        "The window starts one token too early.",
        edit("near[n] += do4[m] * k8[4 + m - n]", "near[n] += do4[m] * k8[3 + m - n]"),
    ),
    far_from_the_start=(
        "The far group uses the window of the near one.",
        edit(
            "first = load4(s_do, (i,)), TILE + i - d_far - 4",
            "first = load4(s_do, (i,)), TILE + i - d_near - 4",
        ),
    ),
    sums_of_the_last_row=(
        "The sums start again with every batch row.",
        edit(
            "for t0 in range(d0, T, TILE):",
            "for n in range(4):\n    near[n], far[n] = 0, 0\nfor t0 in range(d0, T, TILE):",
        ),
    ),
    returns_before_the_barrier=(
        "Threads without distances return and never reach the barriers.",
        edit("# from d0 on", "# from d0 on\nif d_near > d_far:\n    return"),
    ),
)
