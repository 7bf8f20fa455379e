"""The threads of a head need the same r, k, decay and u: each loads one element for all."""

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
                "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]": "N threads load N elements: "
                "each comes once per head, coalesced.",
                "cuda.syncthreads()  # every element is there before anyone reads": "Without it, "
                "the other warp's half of the row may not be there yet.",
                "cuda.syncthreads()  # everyone has read before the next token overwrites": "Else "
                "a fast warp overwrites what a slow one is still reading.",
            },
            instead={
                "Two buffers, for even and odd tokens": "one barrier per token instead of two, "
                "for another 512 bytes of shared memory.",
            },
            stretch="Write that version, with one barrier per token. The check searches it for "
            "races.",
        ),
        hints=(
            "There are N threads and N elements in a row: thread j loads element j, and then all "
            "threads read all elements.",
            "Use two barriers per token: one after filling s_r and s_k, one before the next "
            "token overwrites them. Every thread must reach both.",
            "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]; cuda.syncthreads(); the loop of "
            "lesson 04, reading s_r, s_k, s_decay and s_u; o[b, t, h, j] = o_j; "
            "cuda.syncthreads().",
        ),
        evidence=wkv5_kernel(
            launch,
            in_registers(),
            budgets=(atomics(0), loads(3), stores(1), bank_conflicts()),
            spare=False,
        ),
        symptoms={
            "by hand": "If there is a NaN, an element of a shared array is read before it is "
            "filled: which thread fills it, and do all threads wait? If there is no NaN, compare "
            "with o_j = Σ_i r_i·u_i·k_i·v_j, the first token: only v has the index j.",
            "state": "The first token is right. Does one thread store the next r and k while "
            "another still reads the old ones?",
            "order": "Every thread needs a whole row: where must the threads wait for each other?",
        },
    ),
    "state_in_shared": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "s_state[i, j] = s_decay[i] * s_state[i, j] + kv": "The lanes differ in j, so "
                "they use 32 different banks: no conflict.",
            },
            instead={
                "s_state[j, i]": "the lanes of a warp are then N floats apart, all in one bank: "
                "32 wavefronts instead of one.",
                "s_state[j, i] with rows of N + 1": "no conflict either, for N more floats of "
                "shared memory. numba needs a global name for the length: PADDED = N + 1.",
            },
            stretch="Keep half of the column in registers and half in shared memory. Where is "
            "the best place to split it?",
        ),
        hints=(
            "Shared memory has 32 banks, each one float wide. Which of the two indices should "
            "differ between the lanes of a warp?",
            "Lane j accesses column j at every step. Put neighbouring columns next to each other "
            "in memory: [i, j].",
            "Use s_state[i, j] instead of s[i]: element [i, j] is in bank (i·N + j) % 32, so the "
            "32 lanes use 32 banks.",
        ),
        evidence=wkv5_kernel(
            launch,
            budgets=(atomics(0), loads(3), stores(1), kept_in_shared(N), bank_conflicts()),
            spare=False,
        ),
        symptoms={
            "by hand": "Does every thread set its own column of s_state to zero before the first "
            "token?",
            "state": "Every thread owns N floats of the state: one column.",
            "order": "Every thread owns N floats of the state: one column.",
        },
    ),
}
