"""Wrong answers to 01_five_loops."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong

five_loops = wrong(
    bonus_on_the_state=(
        "The bonus multiplies the state as well as the current token.",
        edit("(u[h, i] * kv + s[i, j])", "u[h, i] * (kv + s[i, j])"),
    ),
    one_letter=(
        "The columns decay instead of the rows: decay is indexed by the value j.",
        edit("decay[h, i] * s[i, j]", "decay[h, j] * s[i, j]"),
    ),
    einsum=(
        "The result is right, but the two inner loops are array operations, which njit cannot "
        "compile.",
        instead(
            """
            B, T, H, N = r.shape
            o = np.zeros_like(v)
            s = np.zeros((B, H, N, N), np.float32)
            for t in range(T):
                kv = np.einsum("bhi,bhj->bhij", k[:, t], v[:, t])
                o[:, t] = np.einsum("bhi,bhij->bhj", r[:, t], u[..., None] * kv + s)
                s = decay[..., None] * s + kv
            return o
            """
        ),
    ),
    state_before_output=(
        "The state is updated before the output reads it, so the current token counts twice.",
        move("s[i, j] = decay[h, i] * s[i, j] + kv", before="o[b, t, h, j] +="),
    ),
    one_state_for_all=(
        "There is one state for all: each head continues from the state that the previous head "
        "left.",
        edit("            s = np.zeros((N, N), np.float32)\n", ""),
        edit("o = np.zeros_like(v)", "o = np.zeros_like(v)\ns = np.zeros((N, N), np.float32)"),
    ),
    state_shared_by_batch=(
        "There is one state per head for all batch rows: a row starts where the previous row "
        "ended.",
        edit("np.zeros_like(v)", "np.zeros_like(v)\nstates = np.zeros((H, N, N), np.float32)"),
        edit("s = np.zeros((N, N), np.float32)", "s = states[h]"),
    ),
)

flops = wrong(
    multiply_adds=(
        "Counts a multiplication and the addition after it as one: that counts instructions, not "
        "operations.",
        edit("7 * B", "4 * B"),
    ),
    vector_state=(
        "Treats the state as a vector of N elements, but it is a matrix.",
        edit("N * N", "N"),
    ),
)

least_bytes = wrong(
    half_parameters=(
        "Assumes that decay and u have the same itemsize as r, k and v.",
        edit("4 * B * T * H * N * itemsize", "(4 * B * T * H * N"),
        edit("+ 2 * H * N * 4", "+ 2 * H * N) * itemsize"),
    ),
    output_forgotten=(
        "Counts what is read but not what is written.",
        edit("4 * B", "3 * B"),
    ),
    state_every_token=(
        "Reads and writes the state at every token, as torch does, but it can stay on the chip.",
        edit("2 * H * N * 4", "2 * H * N * 4 + 2 * B * T * H * N * N * 4"),
    ),
)
