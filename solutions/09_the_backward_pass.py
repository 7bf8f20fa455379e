"""Gradients of RWKV-6: a forward sweep, a reverse sweep, and a running difference."""

import math

import torch
from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import in_registers
from rwkv_lessons.lab.evidence.traffic import atomics, bank_conflicts, exponentials, loads, stores
from rwkv_lessons.lab.evidence.wkv6 import BACKWARD, wkv6_kernel
from rwkv_lessons.runtime.launch_numba import as_array, ceil_div, stream

N = 64  # head size
C = 64  # tokens from one checkpoint to the next


@cuda.jit(launch_bounds=(N, 1))
def forward_sweep(r, k, v, w, u, s0, do, dr, rdr, du, states):
    """Forward sweep: thread i owns row i of the state S. A block is a head of a batch row.

    r, k, v, w, do, dr, rdr are [B, T, H, N]; u is [H, N]; du is [B, H, N]; s0 is [B, H, N, N],
    keys × values. rdr gets r times the part of dr that comes through S. states, [B, chunks, H, N,
    N], values × keys, gets S after the last token of every chunk.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    i = cuda.threadIdx.x
    s_v = cuda.shared.array(N, float32)
    s_do = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    for j in range(N):
        s[j] = s0[b, h, i, j]
    u_i, du_i = u[h, i], float32(0)
    for t in range(T):
        s_v[i], s_do[i] = v[b, t, h, i], do[b, t, h, i]
        r_i, k_i, decay_i = r[b, t, h, i], k[b, t, h, i], math.exp(w[b, t, h, i])
        cuda.syncthreads()
        ### BEGIN SOLUTION
        through_s, v_do = float32(0), float32(0)
        for j in range(N):
            through_s += s[j] * s_do[j]
            v_do += s_v[j] * s_do[j]
            s[j] = decay_i * s[j] + k_i * s_v[j]
        dr[b, t, h, i] = through_s + u_i * k_i * v_do
        rdr[b, t, h, i] = r_i * through_s
        du_i += r_i * k_i * v_do
        ### END SOLUTION
        if (t + 1) % C == 0 or t == T - 1:
            for j in range(N):
                states[b, t // C, h, j, i] = s[j]
        cuda.syncthreads()
    du[b, h, i] = du_i


@cuda.jit
def backward_sweep(r, k, v, w, u, ds1, do, states, dk, dv, kdk, ds0, a):
    """Reverse sweep: thread n owns row n and column n of G. A block is a head of a batch row.

    r, k, v, w, do, dk, dv, kdk are [B, T, H, N]; u is [H, N]; ds0, ds1 are [B, H, N, N], keys ×
    values. kdk gets k times the part of dk that comes through G; a, [B, chunks, H, N], the sums of
    S·G along the rows, after the last token of every chunk.
    """
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    n = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_v = cuda.shared.array(N, float32)
    s_do = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    row = cuda.local.array(N, float32)  # G[n, j]
    column = cuda.local.array(N, float32)  # G[i, n]
    s_u[n] = u[h, n]
    ### BEGIN SOLUTION
    for m in range(N):
        row[m], column[m] = ds1[b, h, n, m], ds1[b, h, m, n]
    ### END SOLUTION
    for step in range(T):
        ### BEGIN SOLUTION
        t = T - 1 - step
        ### END SOLUTION
        s_r[n], s_k[n], s_v[n] = r[b, t, h, n], k[b, t, h, n], v[b, t, h, n]
        s_do[n], s_decay[n] = do[b, t, h, n], math.exp(w[b, t, h, n])
        cuda.syncthreads()
        if (t + 1) % C == 0 or step == 0:
            a_n = float32(0)
            for j in range(N):
                a_n += states[b, t // C, h, j, n] * row[j]
            a[b, t // C, h, n] = a_n
        ### BEGIN SOLUTION
        through_g, v_do = float32(0), float32(0)
        for j in range(N):
            through_g += row[j] * s_v[j]
            v_do += s_v[j] * s_do[j]
            row[j] = s_decay[n] * row[j] + s_r[n] * s_do[j]
        dk[b, t, h, n] = through_g + s_u[n] * s_r[n] * v_do
        kdk[b, t, h, n] = s_k[n] * through_g
        dv_n, ruk = float32(0), float32(0)
        for i in range(N):
            dv_n += column[i] * s_k[i]
            ruk += s_r[i] * s_u[i] * s_k[i]
            column[i] = s_decay[i] * column[i] + s_r[i] * s_do[n]
        dv[b, t, h, n] = dv_n + ruk * s_do[n]
        ### END SOLUTION
        cuda.syncthreads()
    for i in range(N):
        ds0[b, h, i, n] = column[i]


@cuda.jit
def decay_gradient(rdr, kdk, a, dw):
    """Back through one chunk: thread i has channel i. A block is a head of a chunk of a batch row.

    rdr, kdk, dw are [B, T, H, N]; a is [B, chunks, H, N], the sums of S·G at the ends of chunks.
    """
    B, T, H, _ = dw.shape
    chunks = a.shape[1]
    b, c = cuda.blockIdx.x // (chunks * H), cuda.blockIdx.x // H % chunks
    h, i = cuda.blockIdx.x % H, cuda.threadIdx.x
    first, end = c * C, min(c * C + C, T)
    ### BEGIN SOLUTION
    a_i = a[b, c, h, i]
    for t in range(end - 1, first - 1, -1):
        dw_i = a_i - kdk[b, t, h, i]
        dw[b, t, h, i] = dw_i
        a_i = dw_i + rdr[b, t, h, i]
    ### END SOLUTION


def launch(B, T, H, N, C=C):
    """How many blocks, of how many threads, for either sweep."""
    return B * H, N


def launch_chunks(B, T, H, N, C=C):
    """The same for `decay_gradient`."""
    return B * ceil_div(T, C) * H, N


def gradients(r, k, v, w, u, s0, do, ds1):
    """dr, dk, dv, dw, du, ds0 on a GPU: the three kernels one after another, all float32."""
    B, T, H, _ = r.shape
    dr, rdr, dk, kdk, dv, dw = (torch.empty_like(r) for _ in range(6))
    du, ds0 = torch.empty_like(r[:, 0]), torch.empty_like(s0)
    states = r.new_empty(B, ceil_div(T, C), H, N, N)
    a = r.new_empty(B, ceil_div(T, C), H, N)
    _run(forward_sweep, launch, r, k, v, w, u, s0, do, dr, rdr, du, states)
    _run(backward_sweep, launch, r, k, v, w, u, ds1, do, states, dk, dv, kdk, ds0, a)
    _run(decay_gradient, launch_chunks, rdr, kdk, a, dw)
    return dr, dk, dv, dw, du.sum(0), ds0


def _run(kernel, sizes, first, *others):
    grid, block = sizes(*first.shape)
    kernel[grid, block, stream()](*map(as_array, (first, *others)))


def forward_budgets(N):
    """Six numbers come in for each token, two go out; and a state of N every C tokens."""
    return atomics(0), loads(6), stores(2 + N / C), exponentials(1), bank_conflicts()


def backward_budgets(N):
    """Five numbers come in for each token, three go out; and a state of N every C tokens comes."""
    return atomics(0), loads(5 + N / C), stores(3), exponentials(1), bank_conflicts()


EXERCISES = {
    "forward_sweep": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "through_s += s[j] * s_do[j]": "This is the row of S that the thread owns, so "
                "the sum over j stays inside the thread.",
                "s[j] = decay_i * s[j] + k_i * s_v[j]": "This comes last: dr uses the state "
                "before its token.",
            },
            instead={
                "A thread per column, as in the forward pass": "dr would be a sum across "
                "threads, with shuffles or atomics at every token.",
            },
            stretch="Both sums in the loop read s_do. Load four of its floats at a time. How "
            "many LDS are left?",
        ),
        hints=(
            "Both sums over j run along your row: s[j] is S[i, j]. Which part of dr needs S, and "
            "which does not?",
            "Compute Σ s[j]·do[j] and Σ v[j]·do[j] in one loop over j, and update s[j] at the "
            "end of its body. The second sum times u·k is added to dr; times r·k it is added to "
            "du.",
            "dr = through_s + u_i·k_i·v_do, rdr = r_i·through_s, du_i += r_i·k_i·v_do. Last in "
            "the loop: s[j] = decay_i·s[j] + k_i·s_v[j].",
        ),
        evidence=wkv6_kernel(
            forward_sweep,
            launch,
            ("dr", "rdr", "du", "states"),
            BACKWARD,
            in_registers(),
            budgets=forward_budgets,
        ),
        symptoms={
            "by hand": "With one token and an empty state, dr is u·k·Σ v·do, and du is r·k·Σ v·do.",
            "state": "dr uses the state before its token: compute the sum first, then update s. "
            "du is summed over all tokens.",
            "chunk": "states receives the state after the token, so s must be updated by then.",
            "last": "dr uses the state before its token: compute the sum first, then update s.",
        },
    ),
    "backward_sweep": Exercise(
        minutes=20,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "t = T - 1 - step": "G⁺ comes from the later tokens, so the last token is "
                "processed first.",
                "row[j] = s_decay[n] * row[j] + s_r[n] * s_do[j]": "dk is a sum along a row of "
                "G, so a thread keeps a row …",
                "column[i] = s_decay[i] * column[i] + s_r[i] * s_do[n]": "… and dv is a sum "
                "along a column, so it keeps a column too, and G is computed twice.",
            },
            instead={
                "Only the row, and dv by sums across threads": "half the registers for G and "
                "half of its updates, for a reduction over N threads at every token.",
            },
            stretch="Give each thread a square tile of 8 × 8, as at the end of lesson 07. Which "
            "sums then run across threads?",
        ),
        hints=(
            "Decide three things: what G starts with, which token comes first, and what a token "
            "does with G. When a token is processed, G is still the gradient of the state after "
            "it.",
            "Sums along the row (over j) give dk, sums along the column (over i) give dv. Use G "
            "first, then update it: multiply by the decay and add r·do. Use one loop for the row "
            "and one for the column.",
            "row[m] = ds1[b, h, n, m], column[m] = ds1[b, h, m, n]; t = T − 1 − step; "
            "row[j] = s_decay[n]·row[j] + s_r[n]·s_do[j]; column[i] = s_decay[i]·column[i] + "
            "s_r[i]·s_do[n]; dv = Σ column[i]·k[i] + do[n]·Σ r[i]·u[i]·k[i].",
        ),
        evidence=wkv6_kernel(
            backward_sweep,
            launch,
            ("dk", "dv", "kdk", "ds0", "a"),
            BACKWARD,
            in_registers(),
            budgets=backward_budgets,
        ),
        symptoms={
            "by hand": "With one token and no states G is 0, so dk is u·r·Σ v·do, dv is do·Σ "
            "r·u·k, and kdk is 0.",
            "last": "G starts as ds1. dk and dv use it first; then G[i, j] becomes "
            "exp(w[i])·G[i, j] + r[i]·do[j], in the row and in the column.",
            "state": "dk[t] and dv[t] use the G after token t, and the last token is processed "
            "first.",
        },
    ),
    "decay_gradient": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "dw_i = a_i - kdk[b, t, h, i]": "What token t adds to the state does not pass "
                "through its own decay.",
                "a_i = dw_i + rdr[b, t, h, i]": "What it reads from the state does, so it "
                "belongs to the sum before the token.",
            },
            instead={
                "One running difference from the last token on": "no checkpoints to store, but "
                "rounding errors that grow with T.",
            },
            stretch="Halve the chunk length. What happens to the error, and to the bytes of the "
            "checkpoints?",
        ),
        hints=(
            "Start with a at the end of the chunk, and process its tokens from the last to the "
            "first.",
            "Subtract what the token added (kdk): that is dw. Then add what it read (rdr): that "
            "is the sum before the token.",
            "for t in range(end - 1, first - 1, -1): dw_i = a_i − kdk[b, t, h, i]; store it; "
            "a_i = dw_i + rdr[b, t, h, i].",
        ),
        evidence=wkv6_kernel(
            decay_gradient,
            launch_chunks,
            ("dw",),
            BACKWARD,
            in_registers(),
            budgets=(atomics(0), loads(2), stores(1)),
        ),
        symptoms={
            "by hand": "With one token and an empty state, its decay multiplies zeros, so dw is 0.",
            "last": "dw is a minus the token's own part, kdk.",
            "state": "The sum for the token before is a = dw + rdr.",
            "chunk": "Every chunk starts with its own a, at its own end.",
        },
    ),
}
