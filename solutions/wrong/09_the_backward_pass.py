"""Wrong answers to 09_the_backward_pass."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

forward_sweep = wrong(
    bonus_missing_in_dr=(
        "The bonus term is missing in dr.",
        edit("u_i, du_i = u[h, i], float32(0)", "du_i = float32(0)"),
        edit("through_s + u_i * k_i * v_do", "through_s"),
    ),
    du_of_the_last_token=(
        "du contains only the last token's term.",
        edit("du_i +=", "du_i ="),
    ),
    no_barrier_after_token_63=(
        "After 64 tokens a barrier is missing: the next values can be stored before all threads "
        "have read the previous ones.",
        edit(
            """
            if (t + 1) % C == 0 or t == T - 1:
                for j in range(N):
                    states[b, t // C, h, j, i] = s[j]
            cuda.syncthreads()
            """,
            """
            if (t + 1) % C == 0 or t == T - 1:
                for j in range(N):
                    states[b, t // C, h, j, i] = s[j]
            if t != 63:
                cuda.syncthreads()
            """,
        ),
    ),
    starts_from_zero=(
        "Ignores the initial state.",
        edit("s[j] = s0[b, h, i, j]", "s[j] = 0"),
    ),
    state_moves_first=(
        "The state is updated with the token before dr uses it.",
        move("s[j] = decay_i * s[j] + k_i * s_v[j]", before="through_s += s[j] * s_do[j]"),
    ),
    sums_the_column=(
        "Thread i updates row i of the state with keys and values swapped.",
        edit("k_i * s_v[j]", "k[b, t, h, j] * s_v[i]"),
    ),
)

backward_sweep = wrong(
    bonus_forgotten=(
        "The bonus terms are missing in dk and dv.",
        edit("through_g + s_u[n] * s_r[n] * v_do", "through_g"),
        edit("dv_n + ruk * s_do[n]", "dv_n"),
    ),
    decay_of_the_thread=(
        "The whole column decays at the rate of one key, the thread's own.",
        edit("s_decay[i] * column[i]", "s_decay[n] * column[i]"),
    ),
    decay_on_the_output=(
        "The decay is applied to the current token's r·do as well.",
        edit("row[j] + s_r[n] * s_do[j]", "(row[j] + s_r[n] * s_do[j])"),
        edit("column[i] + s_r[i] * s_do[n]", "(column[i] + s_r[i] * s_do[n])"),
    ),
    models_still_learn=(
        "Ignores the gradient of the final state.",
        edit("ds1[b, h, n, m], ds1[b, h, m, n]", "0, 0"),
    ),
    first_token_first=(
        "The tokens are processed from the first to the last.",
        edit("t = T - 1 - step", "t = step"),
    ),
    token_too_early=(
        "G is updated before dk and dv use it.",
        move("row[j] = s_decay[n] * row[j] + s_r[n] * s_do[j]", before="through_g +="),
        move("column[i] = s_decay[i] * column[i] + s_r[i] * s_do[n]", before="dv_n +="),
    ),
)

decay_gradient = wrong(
    chunk_from_its_first_token=(
        "The chunk is processed from its first token.",
        edit("range(end - 1, first - 1, -1)", "range(first, end)"),
    ),
    forgets_what_was_read=(
        "What the token reads from the state is never added.",
        edit("dw_i + rdr[b, t, h, i]", "dw_i"),
    ),
    no_checkpoints=(
        "Every chunk starts with the sum at the end of the last chunk.",
        edit("a[b, c, h, i]", "a[b, chunks - 1, h, i]"),
    ),
    off_by_one_token=(
        "dw is written one token late.",
        edit(
            "dw[b, t, h, i] = dw_i",
            """
            if t + 1 < end:
                dw[b, t + 1, h, i] = dw_i
            if t == first:
                dw[b, t, h, i] = dw_i
            """,
        ),
    ),
    own_part_left_in=(
        "The token's own part is not subtracted from dw.",
        edit("a_i - kdk[b, t, h, i]", "a_i"),
        edit("dw_i + rdr[b, t, h, i]", "dw_i - kdk[b, t, h, i] + rdr[b, t, h, i]"),
    ),
)
