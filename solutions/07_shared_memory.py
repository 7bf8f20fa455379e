"""The threads of a head read the same r, k, decay and u: one of them fetches, all of them read."""

from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import (
    atomics,
    bank_conflicts,
    in_registers,
    kept_in_shared,
    loads,
    stores,
    wkv5_kernel,
)

N = 64  # head size


@cuda.jit(launch_bounds=(N, 1))
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


@cuda.jit(launch_bounds=(N, 1))
def state_in_shared(r, k, v, decay, u, o):
    """`shared`, with the state of the head in shared memory too: N·N floats, 16 KB.

    r, k, v, o are [B, T, H, N]; decay, u are [H, N]; all float32. N threads per block.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s_state = cuda.shared.array((N, N), float32)
    s_decay[j], s_u[j] = decay[h, j], u[h, j]
    ### BEGIN SOLUTION
    for i in range(N):
        s_state[i, j] = 0  # neighbours in j are neighbours in memory: 32 lanes, 32 banks
    ### END SOLUTION
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()
        v_j = v[b, t, h, j]
        o_j = float32(0)
        ### BEGIN SOLUTION
        for i in range(N):
            kv = s_k[i] * v_j
            o_j += s_r[i] * (s_u[i] * kv + s_state[i, j])
            s_state[i, j] = s_decay[i] * s_state[i, j] + kv
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
        afterwards=Afterwards(
            why={
                "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]": "N threads fetch N elements: "
                "each comes once per head, coalesced.",
                "cuda.syncthreads()  # every element is there before anyone reads": "The other "
                "warp's half of the row may not be there yet.",
                "cuda.syncthreads()  # everyone has read before the next token overwrites": "Else "
                "a fast warp overwrites what a slow one still reads.",
            },
            instead={
                "Two buffers, for even and odd tokens": "one barrier a token instead of two, for "
                "another 512 bytes of shared memory.",
            },
            stretch="Do that: one barrier a token. The check searches it for races.",
        ),
        hints=(
            "N threads, N elements in a row: thread j fetches element j, and then all read all.",
            "Two barriers a token: one after filling s_r and s_k, one before the next token "
            "overwrites them. Every thread must reach both.",
            "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]; cuda.syncthreads(); the loop of lesson "
            "04 reading s_r, s_k, s_decay, s_u; o[b, t, h, j] = o_j; cuda.syncthreads().",
        ),
        evidence=wkv5_kernel(
            launch,
            in_registers(),
            budgets=(atomics(0), loads(3), stores(1), bank_conflicts()),
            spare=False,
        ),
        symptoms={
            "by hand": "A NaN: some element of a shared array is read before its thread has filled "
            "it. Who fills it, and does everyone wait? No NaN: two tokens on paper will show it.",
            "state": "The first token is right. Does somebody fill in the next r and k while "
            "another thread still reads the old ones?",
            "order": "Every thread needs all of a row: where must they wait for each other?",
        },
    ),
    "state_in_shared": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "s_state[i, j] = s_decay[i] * s_state[i, j] + kv": "Lanes differ in j, so they "
                "touch 32 banks: no conflict.",
            },
            instead={
                "s_state[j, i]": "the lanes of a warp are then N floats apart, all in one bank: "
                "32 wavefronts where one is enough.",
                "s_state[j, i] with rows of N + 1": "no conflict either, for N floats of padding.",
            },
            stretch="Keep half of the column in registers and half in shared memory. Where is the "
            "best place to cut?",
        ),
        hints=(
            "Shared memory is 32 banks wide, a float each. Which of the two indices should run "
            "with the lanes of a warp?",
            "Lane j touches column j at every step. Lay the columns side by side: [i, j].",
            "s_state[i, j] instead of s[i]: element [i, j] is in bank (i·N + j) % 32, so the "
            "32 lanes are in 32 banks.",
        ),
        evidence=wkv5_kernel(
            launch,
            budgets=(atomics(0), loads(3), stores(1), kept_in_shared(N), bank_conflicts()),
            spare=False,
        ),
        symptoms={
            "by hand": "Does every thread clear its own column of s_state before the first token?",
            "state": "Every thread has N floats of the state to itself: a column each.",
            "order": "Every thread has N floats of the state to itself: a column each.",
        },
    ),
}
