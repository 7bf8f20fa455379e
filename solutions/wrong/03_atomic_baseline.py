"""Wrong answers to 03_atomic_baseline."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

kernel = wrong(
    decay_too_late=(
        "The decay is applied to the new product as well as to the old state.",
        edit("decay[h, i] * s[i] + kv", "decay[h, i] * (s[i] + kv)"),
    ),
    overwrites=(
        "A plain store keeps only the last product instead of the sum.",
        edit(
            "cuda.atomic.add(o, (b, t, h, j), r[b, t, h, i] * (u[h, i] * kv + s[i]))",
            "o[b, t, h, j] = r[b, t, h, i] * (u[h, i] * kv + s[i])",
        ),
    ),
    right_for_64_channels=(
        "The extra threads of the last block compute and add as well.",
        instead(  # what the guard held moves to the left
            """
            B, T, H, _ = r.shape
            thread = cuda.grid(1)
            b, h, j = thread // (H * N), thread // N % H, thread % N
            s = cuda.local.array(N, float32)
            for i in range(N):
                s[i] = 0
            for t in range(T):
                v_j = v[b, t, h, j]
                for i in range(N):
                    kv = k[b, t, h, i] * v_j
                    cuda.atomic.add(o, (b, t, h, j), r[b, t, h, i] * (u[h, i] * kv + s[i]))
                    s[i] = decay[h, i] * s[i] + kv
            """
        ),
    ),
    transposed_state=(
        "The output is added to row i instead of column j.",
        edit("atomic.add(o, (b, t, h, j)", "atomic.add(o, (b, t, h, i)"),
    ),
)
