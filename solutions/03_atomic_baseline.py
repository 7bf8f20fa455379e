"""The loops over b, h and j become threads; every product is added to the output in memory."""

from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import atomics, few_sectors, some_atomics, wkv5_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div

N = 64  # head size
BLOCK = 32  # threads per block: one warp


@cuda.jit
def kernel(r, k, v, decay, u, o):
    """One thread per output column j of a head: it owns column j of the state.

    r, k, v, o are [B, T, H, N]; decay, u are [H, N]; all float32. `o` is zero before the launch.
    """
    B, T, H, _ = r.shape
    thread = cuda.grid(1)
    ### BEGIN SOLUTION
    b, h, j = thread // (H * N), thread // N % H, thread % N
    if b < B:
        s = cuda.local.array(N, float32)
        for i in range(N):
            s[i] = 0
        for t in range(T):
            v_j = v[b, t, h, j]
            for i in range(N):
                kv = k[b, t, h, i] * v_j
                cuda.atomic.add(o, (b, t, h, j), r[b, t, h, i] * (u[h, i] * kv + s[i]))
                s[i] = decay[h, i] * s[i] + kv
    ### END SOLUTION


def launch(B, T, H, N):
    """How many blocks, of how many threads."""
    return ceil_div(B * H * N, BLOCK), BLOCK


NEIGHBOURS = (
    "Let j vary fastest: then neighbouring lanes read neighbouring elements of v, and the same "
    "element of r and k. Here two heads share a warp; with 64 heads a load touches 32 sectors."
)
EXERCISES = {
    "kernel": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "b, h, j = thread // (H * N), thread // N % H, thread % N": "j varies fastest, "
                "so the 32 lanes of a warp own neighbouring columns and the loads of v are "
                "coalesced.",
                "if b < B:": "The last block may have extra threads.",
                "cuda.atomic.add(o, (b, t, h, j), r[b, t, h, i] * (u[h, i] * kv + s[i]))": "N "
                "atomics per output and token, although no other thread adds there: see the next "
                "lesson.",
            },
            instead={
                "A thread per row i": "the sum over i then runs across threads, and the atomics "
                "become necessary.",
            },
            stretch="Let several threads share a column, 16 rows each. Now the atomics are "
            "necessary. What does it cost?",
        ),
        hints=(
            "Three loops are gone: their indices come from `thread`. Which two loops stay?",
            "`j` varies fastest: j = thread % N. A thread's state is one column: N floats that "
            "start at 0. Guard against the extra threads with `if b < B:`.",
            "In the loops over t and i: first kv = k·v_j, then cuda.atomic.add(o, (b, t, h, j), "
            "r·(u·kv + s[i])), then s[i] = decay·s[i] + kv.",
        ),
        evidence=wkv5_kernel(
            launch,
            budgets=(atomics(N), some_atomics()),
            zeroed=True,
            remarks=(few_sectors((4 + 4 * N) / (1 + 4 * N), NEIGHBOURS),),
        ),
        symptoms={
            "by hand": "For the first token o_j = Σ_i r_i·u_i·k_i·v_j, which is 64 for ones. If "
            "you get twice that, two threads have the same b, h and j. If you get 1, a store "
            "replaced the sum.",
        },
    )
}
