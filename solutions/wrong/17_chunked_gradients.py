"""Wrong answers to 17_chunked_gradients."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

decay_gradient = wrong(
    counts_its_own_key=(
        "Counts the token's own contribution as if it crossed the token's decay.",
        edit("(k * dk_s).cumsum(0) - k * dk_s", "(k * dk_s).cumsum(0)"),
    ),
    counts_its_own_read=(
        "Counts what token t reads, although it is read before the decay.",
        edit(" - r * dr_s - r * dr_c"),
    ),
    nothing_across=(
        "Leaves out what goes from the state before the chunk to the state after it.",
        edit("across + put_in", "put_in"),
    ),
    pairs_after_t=(
        "Counts pairs that are both put in and taken out after t.",
        edit(" - from_here_on(k * dk_c)"),
    ),
    sums_the_wrong_way=(
        "Sums what is taken out over the tokens before t.",
        edit("return x.flip(0).cumsum(0).flip(0)", "return x.cumsum(0)"),
    ),
)

checkpoints = wrong(
    adds_without_fading=(
        "The chunk's contribution does not fade over the rest of the chunk.",
        edit("(b_k * tl.exp(b_last[None, :] - tl.cumsum(b_w, 0)))", "b_k"),
    ),
    chunks_of_one_row=(
        "Every batch row writes to the memory of the first.",
        edit("(i_b * tl.cdiv(T, BT) + i_c) * H + i_h", "i_c * H + i_h"),
    ),
    full_chunks_only=(
        "Stores no state before a last chunk that is not full.",
        edit("for i_c in range(tl.cdiv(T, BT)):", "for i_c in range(T // BT):"),
    ),
    decays_in_16_bits=(
        "Keeps the sums of a chunk's decays in the type of the decays.",
        edit("tl.cumsum(b_w, 0)", "tl.cumsum(b_w, 0).to(b_v.dtype).to(tl.float32)"),
    ),
    keeps_the_first=(
        "Stores the state before the first chunk for all chunks.",
        edit(
            "tl.store(before + i_s * N * N + o_s, b_s)",
            "tl.store(before + i_s * N * N + o_s, tl.load(s0 + tl.program_id(0) * N * N + o_s))",
        ),
    ),
    keeps_the_state_after=(
        "Stores the state after every chunk instead of the one before it.",
        move(
            """
            b_last = tl.sum(b_w, 0)
            b_adds = (b_k * tl.exp(b_last[None, :] - tl.cumsum(b_w, 0))).to(b_v.dtype)
            b_s *= tl.exp(b_last)[:, None]
            b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)
            """,
            before="tl.store(before + i_s",
        ),
    ),
    starts_from_zero=(
        "Ignores the initial state.",
        edit(
            "b_s = tl.load(s0 + tl.program_id(0) * N * N + o_s)",
            "b_s = tl.zeros([N, N], tl.float32)",
        ),
    ),
    tf32_by_default=(
        "The product does not set its precision, so float32 becomes TF32.",
        edit(", input_precision=PRECISION"),
    ),
)

backward_sweep = wrong(
    decay_of_the_chunk_alone=(
        "dw sees what happens in its chunk, not what passes through it.",
        edit("b_sg[None, :] + "),
    ),
    ends_in_zero=(
        "Ignores the gradient of the final state: the sweep starts from zeros.",
        edit("b_g = tl.load(ds1", "b_g = 0 * tl.load(ds1"),
    ),
    every_score_wanted=(
        "Does not mask the scores' gradient, so outputs pass gradients to tokens that they never "
        "read.",
        edit("tl.where(earlier, b_dscores, 0)", "b_dscores"),
    ),
    moves_on_first=(
        "Goes one chunk back first, and computes dk and dv from that.",
        move(
            """
            b_g *= tl.exp(b_last)[:, None]
            b_adds = (b_r * b_start).to(b_v.dtype)
            b_g += tl.dot(tl.trans(b_adds), b_do, input_precision=PRECISION)
            """,
            before="b_low_s, b_low_g",
        ),
    ),
    right_without_a_state=(
        "Counts the token's own contribution as if it crossed the token's decay.",
        edit("tl.cumsum(b_k * b_dk_s, 0) - b_k * b_dk_s", "tl.cumsum(b_k * b_dk_s, 0)"),
    ),
    scores_not_turned=(
        "dv from the scores as they are: row t of them belongs to the reader, not to the read.",
        edit("tl.trans(b_scores)", "b_scores"),
    ),
)

gradients = wrong(
    batch_not_added=(
        "du of every batch row, where their sum is wanted.",
        edit("du.sum(0), ds0", "du, ds0"),
    ),
    du_of_one_row=(
        "Allocates du for one batch row.",
        edit("s0.new_empty(B, H, N)", "s0.new_empty(1, H, N)"),
    ),
    full_chunks_only=(
        "Allocates no memory for the state before a last chunk that is not full.",
        edit('ceil_div(T, constants["BT"])', 'max(1, T // constants["BT"])'),
    ),
    no_states_kept=(
        "The states before the chunks are never computed.",
        edit("checkpoints[grid](k, v, w, s0, before, **constants)"),
    ),
    over_the_final_gradient=(
        "Writes the gradient of the initial state over that of the final one.",
        edit("torch.empty_like(s0)", "ds1"),
    ),
    states_of_the_keys=(
        "Passes r instead of k to the kernel that keeps states.",
        edit("checkpoints[grid](k, v, w,", "checkpoints[grid](r, v, w,"),
    ),
)
