"""Four neighbouring keys in one 16-byte load: a quarter of the load instructions."""

from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import (
    atomics,
    in_registers,
    loads,
    stores,
    wide_loads,
    wkv5_kernel,
)
from rwkv_lessons.runtime.launch_numba import ceil_div, load4

N = 64  # head size, a multiple of 4
BLOCK = 32  # threads per block: one warp


@cuda.jit
def kernel(r, k, v, decay, u, o):
    """One thread per output column j of a head; r, k, decay and u come four at a time.

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
            o_j = float32(0)
            ### BEGIN SOLUTION
            for i in range(0, N, 4):
                r4, k4 = load4(r, (b, t, h, i)), load4(k, (b, t, h, i))
                decay4, u4 = load4(decay, (h, i)), load4(u, (h, i))
                for n in range(4):
                    kv = k4[n] * v_j
                    o_j += r4[n] * (u4[n] * kv + s[i + n])
                    s[i + n] = decay4[n] * s[i + n] + kv
            ### END SOLUTION
            o[b, t, h, j] = o_j


def launch(B, T, H, N):
    """How many blocks, of how many threads."""
    return ceil_div(B * H * N, BLOCK), BLOCK


EXERCISES = {
    "kernel": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "r4, k4 = load4(r, (b, t, h, i)), load4(k, (b, t, h, i))": "One request brings 16 "
                "bytes: a quarter of the requests.",
                "for n in range(4):": "A loop over a constant range is unrolled, so the four "
                "values stay in registers.",
            },
            instead={
                "Four loads of one value each": "the same bytes in four requests; numba does not "
                "merge them by itself.",
            },
            stretch="Load the next group of four before you use this one. Does the compiler "
            "already do that?",
        ),
        hints=(
            "`load4(array, index)` returns four floats. How many iterations does the loop over i "
            "then have?",
            "Use range(0, N, 4), and load r, k, decay and u with load4 at i. An inner loop over "
            "n in range(4) does the arithmetic for element n, with the state at s[i + n].",
            "r4, k4 = load4(r, (b, t, h, i)), load4(k, (b, t, h, i)), and the same for decay and "
            "u at (h, i). Then kv = k4[n] * v_j and the two lines of lesson 04, with element n "
            "of each tuple.",
        ),
        evidence=wkv5_kernel(
            launch,
            wide_loads(),
            in_registers(),
            budgets=(atomics(0), loads(1 + N), stores(1)),  # v, and four arrays in N / 4 loads each
        ),
        symptoms={
            "by hand": "Four loaded values need four elements of the state: s[i + n]. Are all N "
            "keys included?",
            "alignment": "load4 must start at a multiple of 4: range(0, N, 4) counts 0, 4, 8, …",
        },
    )
}
