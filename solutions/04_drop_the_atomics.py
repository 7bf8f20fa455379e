"""Only the thread that owns column j writes o[…, j], so the sum can stay in a register."""

from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most, atomics, loads, stores, wkv5_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div

N = 64  # head size
BLOCK = 32  # threads per block: one warp


@cuda.jit
def kernel(r, k, v, decay, u, o):
    """One thread per output column j of a head, and one write per token and thread.

    r, k, v, o are [B, T, H, N]; decay, u are [H, N]; all float32.
    """
    B, T, H, _ = r.shape
    thread = cuda.grid(1)
    b, h, j = thread // (H * N), thread // N % H, thread % N
    if b < B:
        s = cuda.local.array(N, float32)
        for i in range(N):
            s[i] = 0
        for t in range(T):
            v_j = v[b, t, h, j]
            ### BEGIN SOLUTION
            o_j = float32(0)
            for i in range(N):
                kv = k[b, t, h, i] * v_j
                o_j += r[b, t, h, i] * (u[h, i] * kv + s[i])
                s[i] = decay[h, i] * s[i] + kv
            o[b, t, h, j] = o_j
            ### END SOLUTION


def launch(B, T, H, N):
    """How many blocks, of how many threads."""
    return ceil_div(B * H * N, BLOCK), BLOCK


EXERCISES = {
    "kernel": Exercise(
        minutes=10,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "o_j = float32(0)": "Only this thread adds to the sum, so it can stay in a "
                "register. A bare 0 would make it float64.",
                "o[b, t, h, j] = o_j": "One store per token and thread instead of N atomics.",
            },
            instead={
                "Two sums, one over even i and one over odd i": "two independent chains of "
                "additions, for one more register and one more addition.",
            },
            stretch="Move the bonus out of the loop: v_j · Σ r·u·k. Does the machine code get "
            "shorter?",
        ),
        hints=(
            "Which other threads add to o[b, t, h, j]? None. So why is the sum kept in memory?",
            "Keep a token's sum in a variable, and store it once, after the loop over i.",
            "o_j = float32(0) before the loop over i, o_j += r·(u·kv + s[i]) in it, "
            "o[b, t, h, j] = o_j after it.",
        ),
        evidence=wkv5_kernel(
            launch,
            at_most(0, *ATOMICS),
            budgets=(atomics(0), stores(1), loads(1 + 4 * N)),
        ),
        symptoms={
            "by hand": "If t=0 is right and t=1 is too large, the sum of one token continues "
            "into the next. If t=0 is wrong, check that s is used before it is updated, that i "
            "runs over all N, and that only v has the index j.",
            "state": "Does every token's sum start from 0? Is s used before it is updated?",
        },
    )
}
