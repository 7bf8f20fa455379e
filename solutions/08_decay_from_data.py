"""RWKV-6: every token has its own decay, and the state is an input and an output."""

import math

from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import in_registers
from rwkv_lessons.lab.evidence.traffic import atomics, bank_conflicts, exponentials, loads, stores
from rwkv_lessons.lab.evidence.wkv6 import FORWARD, wkv6_kernel

N = 64  # head size


@cuda.jit(launch_bounds=(N, 1))
def kernel(r, k, v, w, u, s0, o, s1):
    """One block per batch row and head, one thread per output column j.

    r, k, v, o are [B, T, H, N], and so is w, the log decay; u is [H, N]; s0, s1 are [B, H, N, N],
    keys × values; all float32. N threads per block.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    s_u[j] = u[h, j]
    ### BEGIN SOLUTION
    for i in range(N):
        s[i] = s0[b, h, i, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        s_decay[j] = math.exp(w[b, t, h, j])
        cuda.syncthreads()  # every element is there before anyone reads
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(N):
            kv = s_k[i] * v_j
            o_j += s_r[i] * (s_u[i] * kv + s[i])
            s[i] = s_decay[i] * s[i] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()  # everyone has read before the next token overwrites
    for i in range(N):
        s1[b, h, i, j] = s[i]
    ### END SOLUTION


def launch(B, T, H, N):
    """How many blocks, of how many threads."""
    return B * H, N


EXERCISES = {
    "kernel": Exercise(
        minutes=20,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "s_decay[j] = math.exp(w[b, t, h, j])": "Thread j computes one exp and all the "
                "others read it: N times fewer than if each computed its own.",
                "s[i] = s0[b, h, i, j]": "This is column j: neighbouring threads read "
                "neighbouring floats.",
            },
            instead={
                "exp in the inner loop": "N exps per token and thread, on units with an eighth "
                "of the rate of multiply-adds.",
            },
            stretch="Load the next token's r, k, w and v before you compute this one. Which "
            "barrier can go?",
        ),
        hints=(
            "It is lesson 07's kernel with three changes: where the decay comes from, where the "
            "state comes from, and where the state goes.",
            "Each token has a row of w, as it has a row of r. Thread j loads element j of it and "
            "computes its exp before the others read it. Column j of s0 and of s1 belongs to "
            "thread j.",
            "s[i] = s0[b, h, i, j] before the loop over t; s_decay[j] = math.exp(w[b, t, h, j]) "
            "next to s_r and s_k, before the barrier; s1[b, h, i, j] = s[i] after the loop.",
        ),
        evidence=wkv6_kernel(
            kernel,
            launch,
            ("o", "s1"),
            FORWARD,
            in_registers(),
            budgets=(atomics(0), loads(4), stores(1), exponentials(1), bank_conflicts()),
        ),
        symptoms={
            "by hand": "With one token and an empty state, o is Σ r·u·k·v, and the new state is "
            "k·v without any decay.",
            "batch": "Each batch row also has its own s0 and s1: is b in every index?",
        },
    ),
}
