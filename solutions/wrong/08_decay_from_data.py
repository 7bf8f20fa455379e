"""Wrong answers to 08_decay_from_data."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

kernel = wrong(
    as_published=(
        "Every batch row reads and writes the state of row 0.",
        edit("s0[b, h, i, j]", "s0[0, h, i, j]"),
        edit("s1[b, h, i, j]", "s1[0, h, i, j]"),
    ),
    decay_fetched_late=(
        "The decay is loaded after the barrier, so some threads read the previous token's.",
        move(
            "cuda.syncthreads()  # every element is there before anyone reads",
            before="s_decay[j] = math.exp(w[b, t, h, j])",
        ),
    ),
    decay_of_the_token_before=(
        "Uses the decay of the previous token.",
        edit("w[b, t, h, j]", "w[b, max(t - 1, 0), h, j]"),
    ),
    decays_the_token_too=(
        "The decay is applied to the current token's product as well.",
        edit("s_decay[i] * s[i] + kv", "s_decay[i] * (s[i] + kv)"),
    ),
    everyone_takes_the_exp=(
        "The answer is right, but every thread computes the exp of every element.",
        edit("math.exp(w[b, t, h, j])", "w[b, t, h, j]"),
        edit("s_decay[i] * s[i] + kv", "math.exp(s_decay[i]) * s[i] + kv"),
    ),
    exp_forgotten=(
        "The log decay is used as the decay.",
        edit("math.exp(w[b, t, h, j])", "w[b, t, h, j]"),
    ),
    last_token_missing=(
        "The final state is written before the last token is added.",
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
        "Ignores the initial state.",
        edit("s[i] = s0[b, h, i, j]", "s[i] = 0"),
    ),
)
