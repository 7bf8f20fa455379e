"""Right kernels of another shape pass the checks of lessons 00 to 09, wrong ones do not."""

import linecache

import numpy as np
import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import edit, move
from rwkv_lessons.lab.evidence.functions import function_cases
from warplens import time_limit

FOUR, FIVE, SHARED = "04_drop_the_atomics.kernel", "05_float4.kernel", "07_shared_memory.shared"
STATE, SIX, SWEEP = (
    "07_shared_memory.state_in_shared",
    "08_decay_from_data.kernel",
    "09_the_backward_pass.decay_gradient",
)
FILL = "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]"
LAST_BARRIER = "cuda.syncthreads()  # everyone has read before the next token overwrites"
FIRST_BARRIER = "cuda.syncthreads()  # every element is there before anyone reads"

RIGHT = {
    "a plain 64 for N": (
        FOUR,
        edit("cuda.local.array(N, float32)", "cuda.local.array(64, float32)"),
    ),
    "names of one's own": (
        SWEEP,
        edit("def decay_gradient(rdr, kdk, a, dw)", "def decay_gradient(p, q, sums, out)"),
        edit("dw.shape", "out.shape"),
        edit("a.shape", "sums.shape"),
        edit("a[b, c, h, i]", "sums[b, c, h, i]"),
        edit("kdk[b, t, h, i]", "q[b, t, h, i]"),
        edit("dw[b, t, h, i]", "out[b, t, h, i]"),
        edit("rdr[b, t, h, i]", "p[b, t, h, i]"),
    ),
    "two buffers and one barrier a token": (
        SHARED,
        edit("s_r = cuda.shared.array(N, float32)", "s_r = cuda.shared.array((2, N), float32)"),
        edit("s_k = cuda.shared.array(N, float32)", "s_k = cuda.shared.array((2, N), float32)"),
        edit(FILL, "s_r[t % 2, j], s_k[t % 2, j] = r[b, t, h, j], k[b, t, h, j]"),
        edit("kv = s_k[i] * v_j", "kv = s_k[t % 2, i] * v_j"),
        edit("o_j += s_r[i] *", "o_j += s_r[t % 2, i] *"),
        edit(LAST_BARRIER),
    ),
    "one warp fetches r, the other k": (
        SHARED,
        edit(
            FILL,
            """
            if j < 32:
                s_r[j], s_r[j + 32] = r[b, t, h, j], r[b, t, h, j + 32]
            else:
                s_k[j], s_k[j - 32] = k[b, t, h, j], k[b, t, h, j - 32]
            """,
        ),
    ),
    "k loaded where it is used, twice in a turn": (
        FOUR,
        edit("kv = k[b, t, h, i] * v_j"),
        edit("(u[h, i] * kv + s[i])", "(u[h, i] * k[b, t, h, i] * v_j + s[i])"),
        edit("decay[h, i] * s[i] + kv", "decay[h, i] * s[i] + k[b, t, h, i] * v_j"),
    ),
    "eight tokens fetched at a time": (
        SHARED,
        edit("s_r = cuda.shared.array(N, float32)", "s_r = cuda.shared.array((8, N), float32)"),
        edit("s_k = cuda.shared.array(N, float32)", "s_k = cuda.shared.array((8, N), float32)"),
        edit(
            FILL,
            """
            if t % 8 == 0:
                for n in range(t, min(t + 8, T)):
                    s_r[n % 8, j], s_k[n % 8, j] = r[b, n, h, j], k[b, n, h, j]
            """,
        ),
        edit("kv = s_k[i] * v_j", "kv = s_k[t % 8, i] * v_j"),
        edit("o_j += s_r[i] *", "o_j += s_r[t % 8, i] *"),
    ),
    "columns that are shifted by the row": (
        STATE,
        edit("s_state[i, j] = 0", "s_state[j, (i + j) % N] = 0"),
        edit("(s_u[i] * kv + s_state[i, j])", "(s_u[i] * kv + s_state[j, (i + j) % N])"),
        edit(
            "s_state[i, j] = s_decay[i] * s_state[i, j]",
            "s_state[j, (i + j) % N] = s_decay[i] * s_state[j, (i + j) % N]",
        ),
    ),
    "small integers as indices": (
        SWEEP,
        edit(
            "h, i = cuda.blockIdx.x % H, cuda.threadIdx.x",
            "h, i = np.uint8(cuda.blockIdx.x % H), np.int8(cuda.threadIdx.x)",
        ),
    ),
}

WRONG = {
    "two of four groups": (FIVE, edit("range(0, N, 4)", "range(0, min(N, 32), 4)"), "answer"),
    "the state forgets at 64 tokens": (
        FOUR,
        edit("v_j = v[b, t, h, j]", "v_j = v[b, t, h, j]\nif t == 64:\n    s[0] = 0"),
        "T=1030",
    ),
    "a barrier of a warp only after 32 tokens": (
        SHARED,
        edit(LAST_BARRIER, "if t % 32 == 31:\n    cuda.syncwarp()\nelse:\n    cuda.syncthreads()"),
        "race on",
    ),
    "a function for kernels": (FOUR, edit("@cuda.jit", "@cuda.jit(device=True)"), "device=True"),
    "no decorator": (FOUR, edit("@cuda.jit\n", ""), "@cuda.jit is missing"),
    "blocks too small": (
        SHARED,
        edit("launch_bounds=(N, 1)", "launch_bounds=(N // 2, 1)"),
        "32 threads",
    ),
    "one parameter short": (
        FOUR,
        edit("(r, k, v, decay, u, o)", "(r, k, v, decay, o)"),
        "takes 5 arguments",
    ),
    "an atomic maximum": (
        SIX,
        edit("o[b, t, h, j] = o_j", "o[b, t, h, j] = -1e30\ncuda.atomic.max(o, (b, t, h, j), o_j)"),
        "1 atomic per warp",
    ),
    "one atomic in all": (
        FOUR,
        edit(
            "o[b, t, h, j] = o_j",
            "o[b, t, h, j] = o_j\nif t == 9:\n    cuda.atomic.add(o, (b, t, h, j), 0)",
        ),
        "atomics per warp",
    ),
    "half a number": (
        FIVE,
        edit("kv = k4[n] * v_j", "kv = 0.5 * (k4[n] * v_j + k4[n] * v_j)"),
        "float32",
    ),
    "it never moves on": (
        FOUR,
        edit("for t in range(T):", "t = 0\nwhile t < T:"),
        "still looping",
    ),
    "decay fetched at every turn": (
        SHARED,
        edit("s[i] = s_decay[i] * s[i] + kv", "s[i] = decay[h, i] * s[i] + kv"),
        "decay: ",
    ),
    "an input is cleared": (
        FOUR,
        edit("o[b, t, h, j] = o_j", "o[b, t, h, j] = o_j\nv[b, t, h, j] = 0"),
        "input v",
    ),
    "a computed NaN": (
        FOUR,
        edit("o[b, t, h, j] = o_j", "o[b, t, h, j] = (o_j - o_j) / (o_j - o_j)"),
        "NaN that was computed",
    ),
    "exp at every turn": (
        SIX,
        edit("s[i] = s_decay[i] * s[i] + kv", "s[i] = math.exp(w[b, t, h, i]) * s[i] + kv"),
        "loads",
    ),
    "the token too early": (
        SHARED,
        move(FIRST_BARRIER, before="s_r[j], s_k[j] ="),
        "read before anything was written",
    ),
    "more shared memory than there is": (
        SHARED,
        edit("s_r = cuda.shared.array(N, float32)", "s_r = cuda.shared.array(200 * N, float32)"),
        "51,",
    ),
    "the future times nothing": (
        FOUR,
        edit(
            "o[b, t, h, j] = o_j", "o[b, t, h, j] = (o_j + k[b, T - 1, h, 0]) - k[b, T - 1, h, 0]"
        ),
        "a token looks at none",
    ),
}


def edited(id, edits, name):
    text = exercises.solved(id)
    for change in edits:
        text = change.apply(text + "\n").rstrip("\n")
    file = f"<{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope = dict(vars(exercises.solutions(id.partition(".")[0]))) | {"np": np}
    exec(compile(text, file, "exec"), scope)
    return scope[id.partition(".")[2]]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_of_another_shape_passes(name):
    id, *edits = RIGHT[name]
    result = evaluate(id, edited(id, edits, name))
    assert result.passed, str(result)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refused_for_its_cause(name, monkeypatch):
    id, *edits, said = WRONG[name]
    if said == "still looping":  # the other ones' time is theirs
        short = (1, time_limit.BYTES)
        monkeypatch.setattr(time_limit.time_limit, "__defaults__", short)
    result = evaluate(id, edited(id, edits, name))
    assert not result.passed and said in str(result), str(result)


def test_the_hint_fits_what_differs():
    kernel = edited(FOUR, [edit("decay[h, i] * s[i] + kv", "s[i] + kv")], "no decay")
    row, _ = exercises.load(FOUR).evidence[0](kernel, exercises.load(FOUR))
    assert f"hint: {exercises.load(FOUR).symptoms['state']}" in row.details


def test_a_function_gets_inputs_of_its_own_and_its_faults_show_them():
    given = [3, 1, 2]
    gather = function_cases(("three", (given,), 6))

    class Exercise:
        symptoms = {}

    def pops(numbers):
        return numbers.pop() + sum(numbers)

    row = gather(pops, Exercise)
    assert row.details[0] == "pops(numbers=[3, 1, 2])"
    assert "changed its input numbers" in row.details[1]
    assert gather(sum, Exercise).verdict == "passed" and given == [3, 1, 2]
    row = gather(lambda numbers: [6], Exercise)
    assert "want one number" in row.details[1]


def test_a_function_that_does_not_end_is_stopped():
    class Exercise:
        symptoms = {}

    def stuck(n):
        while n:
            n += 1

    row = function_cases(("one", (1,), 1))(stuck, Exercise)
    assert "still looping" in str(row) and "while n" in str(row) or "n += 1" in str(row)
