"""The threads of a head read the same r, k, decay and u: one of them fetches, all of them read."""

from numba import cuda, float32

from rwkv_lessons.lab.evidence import at_least, at_most, wkv5_kernel
from rwkv_lessons.lab.exercises import Exercise
from rwkv_lessons.launch import load4

N = 64  # head size, a multiple of 4


@cuda.jit
def shared(r, k, v, decay, u, o):
    """One block per head, one thread per output column j; r, k, decay and u in shared memory.

    r, k, v, o are [B, T, H, N]; decay, u are [H, N]; all float32. N threads per block.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    for i in range(N):
        s[i] = 0
    ### BEGIN SOLUTION
    s_decay[j], s_u[j] = decay[h, j], u[h, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()  # every element is there before anyone reads
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(N):
            kv = s_k[i] * v_j
            o_j += s_r[i] * (s_u[i] * kv + s[i])
            s[i] = s_decay[i] * s[i] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()  # everyone has read before the next token overwrites
    ### END SOLUTION


@cuda.jit
def shared4(r, k, v, decay, u, o):
    """`shared`, reading shared memory four floats at a time.

    r, k, v, o are [B, T, H, N]; decay, u are [H, N]; all float32. N threads per block.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    for i in range(N):
        s[i] = 0
    s_decay[j], s_u[j] = decay[h, j], u[h, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()
        v_j = v[b, t, h, j]
        o_j = float32(0)
        ### BEGIN SOLUTION
        for i in range(0, N, 4):
            r4, k4 = load4(s_r, (i,)), load4(s_k, (i,))
            decay4, u4 = load4(s_decay, (i,)), load4(s_u, (i,))
            for n in range(4):
                kv = k4[n] * v_j
                o_j += r4[n] * (u4[n] * kv + s[i + n])
                s[i + n] = decay4[n] * s[i + n] + kv
        ### END SOLUTION
        o[b, t, h, j] = o_j
        cuda.syncthreads()


def launch(B, T, H, N):
    """How many blocks, of how many threads."""
    return B * H, N


EXERCISES = {
    "shared": Exercise(
        minutes=20,
        difficulty=3,
        hints=(
            "N threads, N elements in a row: thread j fetches element j, and then all read all.",
            "Two barriers a token: one after filling s_r and s_k, one before the next token "
            "overwrites them. Every thread must reach both.",
            "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]; cuda.syncthreads(); the loop of lesson "
            "04 reading s_r, s_k, s_decay, s_u; o[b, t, h, j] = o_j; cuda.syncthreads().",
        ),
        evidence=wkv5_kernel(
            launch,
            at_least(2, "BAR", text="two barriers"),
            at_most(6, "LDG", text="six loads from global memory"),
        ),
        symptoms={"order": "Every thread needs all of a row: where must they wait for each other?"},
    ),
    "shared4": Exercise(
        minutes=10,
        difficulty=1,
        hints=(
            "Shared arrays take load4 like global ones; their index is a tuple of one.",
            "The loop is lesson 05's, on s_r, s_k, s_decay and s_u.",
            "r4, k4 = load4(s_r, (i,)), load4(s_k, (i,)), and the same for s_decay and s_u.",
        ),
        evidence=wkv5_kernel(
            launch,
            at_least(4, "LDS.128", text="16-byte reads of shared memory (LDS.128)"),
            at_most(0, "LDS", text="no reads of one float"),
        ),
    ),
}
