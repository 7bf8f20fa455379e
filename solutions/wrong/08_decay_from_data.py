"""Wrong answers to 08_decay_from_data."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

kernel = wrong(
    as_published=(
        "Every batch row takes up, and leaves, the state of the first.",
        edit("s0[b, h, i, j]", "s0[0, h, i, j]"),
        edit("s1[b, h, i, j]", "s1[0, h, i, j]"),
    ),
    decay_fetched_late=(
        "The decay is fetched behind the barrier: some threads read the one before.",
        move(
            "cuda.syncthreads()  # every element is there before anyone reads",
            before="s_decay[j] = math.exp(w[b, t, h, j])",
        ),
    ),
    decay_of_the_token_before=(
        "The decay is that of the token before.",
        edit("w[b, t, h, j]", "w[b, max(t - 1, 0), h, j]"),
    ),
    decays_the_token_too=(
        "The decay falls on the token that has just come, too.",
        edit("s_decay[i] * s[i] + kv", "s_decay[i] * (s[i] + kv)"),
    ),
    everyone_takes_the_exp=(
        "The answer is right, but every thread takes the exp of every element.",
        edit("math.exp(w[b, t, h, j])", "w[b, t, h, j]"),
        edit("s_decay[i] * s[i] + kv", "math.exp(s_decay[i]) * s[i] + kv"),
    ),
    exp_forgotten=(
        "The log decay is used as the decay.",
        edit("math.exp(w[b, t, h, j])", "w[b, t, h, j]"),
    ),
    last_token_missing=(
        "The state goes out before the last token has come in.",
        edit(
            """
            for i in range(N):
                s1[b, h, i, j] = s[i]
            """
        ),
        edit(
            "o_j = float32(0)",
            """
            if t == T - 1:
                for i in range(N):
                    s1[b, h, i, j] = s[i]
            o_j = float32(0)
            """,
        ),
    ),
    starts_from_zero=(
        "The state that comes in is never looked at.",
        edit("s[i] = s0[b, h, i, j]", "s[i] = 0"),
    ),
)
