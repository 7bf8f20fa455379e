"""Wrong answers to 05_float4."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

kernel = wrong(
    four_scalars=(
        "A tuple of four neighbouring elements looks like one load but compiles to four.",
        edit(
            """
            r4, k4 = load4(r, (b, t, h, i)), load4(k, (b, t, h, i))
            decay4, u4 = load4(decay, (h, i)), load4(u, (h, i))
            """,
            """
            r4 = r[b, t, h, i], r[b, t, h, i + 1], r[b, t, h, i + 2], r[b, t, h, i + 3]
            k4 = k[b, t, h, i], k[b, t, h, i + 1], k[b, t, h, i + 2], k[b, t, h, i + 3]
            decay4 = decay[h, i], decay[h, i + 1], decay[h, i + 2], decay[h, i + 3]
            u4 = u[h, i], u[h, i + 1], u[h, i + 2], u[h, i + 3]
            """,
        ),
    ),
    last_four_forgotten=(
        "The loop stops one group of four too early.",
        edit("range(0, N, 4)", "range(0, N - 4, 4)"),
    ),
    misaligned=(
        "Uses the number of the group as the index, without multiplying by 4: group 1 starts at "
        "element 1.",
        edit("for i in range(0, N, 4):", "for g in range(N // 4):"),
        edit(
            "load4(r, (b, t, h, i)), load4(k, (b, t, h, i))",
            "load4(r, (b, t, h, g)), load4(k, (b, t, h, g))",
        ),
        edit("load4(decay, (h, i)), load4(u, (h, i))", "load4(decay, (h, g)), load4(u, (h, g))"),
        edit("(u4[n] * kv + s[i + n])", "(u4[n] * kv + s[4 * g + n])"),
        edit("s[i + n] = decay4[n] * s[i + n]", "s[4 * g + n] = decay4[n] * s[4 * g + n]"),
    ),
    one_load_missed=(
        "r, k and u are loaded four at a time, but decay is still loaded one float at a time.",
        edit("decay4, u4 = load4(decay, (h, i)), load4(u, (h, i))", "u4 = load4(u, (h, i))"),
        edit("decay4[n]", "decay[h, i + n]"),
    ),
    state_of_the_first_lane=(
        "All four values read and write the state element of the first.",
        edit("(u4[n] * kv + s[i + n])", "(u4[n] * kv + s[i])"),
        edit("s[i + n] = decay4[n] * s[i + n]", "s[i] = decay4[n] * s[i]"),
    ),
)
