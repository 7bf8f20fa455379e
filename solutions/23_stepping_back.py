"""Gradients of RWKV-7 without its states: each is computed from the one after it."""

import math

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv7 import BACKWARD, FORWARD, problem, wkv7_triton_kernel
from rwkv_lessons.lab.evidence.wkv7_functions import calls, no_solver
from rwkv_lessons.runtime.launch_numba import ceil_div


def step_back(s, w, k, v, a, b):
    """The state before a token of one head, and z, what the token read of it.

    s is [K, V], the state after the token; w, k, a, b are [K], with w the log decay; v is [V].
    Returns the state before the token, [K, V], and z, [V].
    """
    ### BEGIN SOLUTION
    rest = (s - torch.outer(k, v)) * torch.exp(-w)[:, None]  # the state before + outer(faded, z)
    faded = b * torch.exp(-w)
    z = a @ rest / (1 + a @ faded)
    return rest - torch.outer(faded, z), z
    ### END SOLUTION


def longest_span(decay, error):
    """How many steps back are possible, at a decay below 1, until 2⁻²⁴ has grown to `error`."""
    ### BEGIN SOLUTION
    return int(math.log(2**24 * error) / -math.log(decay))
    ### END SOLUTION


@triton.jit
def forward_sweep(
    r, w, k, v, a, b, s0, o, s1, z, kept,
    T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Lesson 22's kernel, which also keeps what the gradients need; grid (NV, B·H).

    z is [B, T, H, V]: what each token read. kept is [B, spans, H, K, V]: the state after the last
    token of every span of C tokens; the last span may be shorter.
    """
    i_v, i_b, i_h = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_s = tl.load(s0 + tl.program_id(1) * K * V + o_s, m_s, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_a = tl.load(a + i_t * K + o_k, m_k, 0)
        b_b = tl.load(b + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
        b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]
        b_s += b_k[:, None] * b_v[None, :]
        tl.store(o + i_t * V + o_v, tl.sum(b_r[:, None] * b_s, 0), m_v)
        ### BEGIN SOLUTION
        tl.store(z + i_t * V + o_v, b_z, m_v)
        if ((t + 1) % C == 0) | (t == T - 1):
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            tl.store(kept + i_c * K * V + o_s, b_s, m_s)
        ### END SOLUTION
    tl.store(s1 + tl.program_id(1) * K * V + o_s, b_s, m_s)


@triton.jit
def backward_sweep(
    r, w, k, v, a, b, z, kept, do, ds1,
    dr_parts, dw_parts, dk_parts, dv, da_parts, db_parts, ds0,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """From the last token to the first: S and its gradient G, a tile of each; grid (NV, B·H).

    Tensors are as in `forward_sweep`; do, dv are [B, T, H, V], ds0, ds1 [B, H, K, V]. dr, dw, dk,
    da, db are sums over values, so each block of values leaves its share: [NV, B, T, H, K].
    """
    i_v, i_b, i_h = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_g = tl.load(ds1 + tl.program_id(1) * K * V + o_s, m_s, 0)
    b_s = tl.zeros([BK, BV], tl.float32)
    for step in range(T):
        t = T - 1 - step
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_a = tl.load(a + i_t * K + o_k, m_k, 0)
        b_b = tl.load(b + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_z = tl.load(z + i_t * V + o_v, m_v, 0)
        b_do = tl.load(do + i_t * V + o_v, m_v, 0)
        if ((t + 1) % C == 0) | (step == 0):  # the state after token t was kept
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            b_s = tl.load(kept + i_c * K * V + o_s, m_s, 0)
        # The output read the state after the token.
        ### BEGIN SOLUTION
        b_dr = tl.sum(b_s * b_do[None, :], 1)
        b_g += b_r[:, None] * b_do[None, :]
        ### END SOLUTION
        # From here on, b_s is the state before it.
        ### BEGIN SOLUTION
        b_s -= b_b[:, None] * b_z[None, :] + b_k[:, None] * b_v[None, :]
        b_s *= tl.exp(-b_w)[:, None]
        ### END SOLUTION
        # What the token put in and took out; then G goes to the state before it, too.
        ### BEGIN SOLUTION
        b_dk = tl.sum(b_g * b_v[None, :], 1)
        b_dv = tl.sum(b_g * b_k[:, None], 0)
        b_db = tl.sum(b_g * b_z[None, :], 1)
        b_dz = tl.sum(b_g * b_b[:, None], 0)
        b_da = tl.sum(b_s * b_dz[None, :], 1)
        b_dw = tl.exp(b_w) * tl.sum(b_s * b_g, 1)
        b_g = tl.exp(b_w)[:, None] * b_g + b_a[:, None] * b_dz[None, :]
        ### END SOLUTION
        o_x = (i_v * B * T * H + i_t) * K + o_k
        tl.store(dr_parts + o_x, b_dr, m_k)
        tl.store(dw_parts + o_x, b_dw, m_k)
        tl.store(dk_parts + o_x, b_dk, m_k)
        tl.store(da_parts + o_x, b_da, m_k)
        tl.store(db_parts + o_x, b_db, m_k)
        tl.store(dv + i_t * V + o_v, b_dv, m_v)
    tl.store(ds0 + tl.program_id(1) * K * V + o_s, b_g, m_s)


def launch(B, T, H, K, V, BK=None, BV=None, C=16, num_warps=1):
    """The grid, and the sizes of `forward_sweep`; 1,024 elements of a state in a tile."""
    BK = BK or triton.next_power_of_2(K)
    BV = BV or max(1, min(triton.next_power_of_2(V), 1024 // BK))
    sizes = {"T": T, "H": H, "K": K, "V": V, "BK": BK, "BV": BV, "C": C}
    return (ceil_div(V, BV), B * H), sizes | {"num_warps": num_warps}


def launch_back(B, *sizes, **blocks):
    """The same for `backward_sweep`."""
    programs, constants = launch(B, *sizes, **blocks)
    return programs, {"B": B} | constants


def gradients(r, w, k, v, a, b, s0, do, ds1):
    """o, dr, dw, dk, dv, da, db, ds0 on a GPU: both sweeps, all float32."""
    sizes = (*r.shape, v.shape[-1])
    (B, T, H, K), V = r.shape, v.shape[-1]
    programs, constants = launch(*sizes)
    o, z, s1, ds0 = torch.empty_like(v), torch.empty_like(v), *torch.empty(2, *s0.shape).to(s0)
    kept = r.new_empty(B, ceil_div(T, constants["C"]), H, K, V)
    forward_sweep[programs](r, w, k, v, a, b, s0, o, s1, z, kept, **constants)
    programs, constants = launch_back(*sizes)
    dr, dw, dk, da, db = r.new_empty(5, programs[0], *r.shape)
    dv = torch.empty_like(v)
    given = (r, w, k, v, a, b, z, kept, do, ds1, dr, dw, dk, dv, da, db, ds0)
    backward_sweep[programs](*given, **constants)
    dr, dw, dk, da, db = (x.sum(0) for x in (dr, dw, dk, da, db))
    return o, dr, dw, dk, dv, da, db, ds0


FORWARD_TENSORS = ("r", "w", "k", "v", "a", "b", "s0", "o", "s1", "z", "kept")
FORWARD_WRITES = FORWARD_TENSORS[-4:]
BACKWARD_WRITES = ("dr_parts", "dw_parts", "dk_parts", "dv", "da_parts", "db_parts", "ds0")
BACKWARD_TENSORS = (*"rwkvab", "z", "kept", "do", "ds1", *BACKWARD_WRITES)
STEPS = (  # kernel, launch, its tensors, those it writes
    (forward_sweep, launch, FORWARD_TENSORS, FORWARD_WRITES),
    (backward_sweep, launch_back, BACKWARD_TENSORS, BACKWARD_WRITES),
)


def small(K):
    """Blocks in the interpreter. With 5 keys spans are shorter, for whoever writes 4, not C."""
    return {"BK": triton.next_power_of_2(K), "BV": 4, "C": 3 if K == 5 else 4}


def exactly_back(s, w, k, v, a, b):
    """The state before, by solving for it; and what a reads of it."""
    before = torch.linalg.solve(torch.diag(w.exp()) + torch.outer(b, a), s - torch.outer(k, v))
    return before, a @ before


def _last(T, K, V, **choice):
    """The last token of a head, and the state after it."""

    def make():
        known = problem((1, T, 1, K, V), **choice)
        token = [known[x][0, -1, 0].float() for x in "wkvab"]
        return known["s1"][0, 0].float(), *token

    return make


NO_ATOMICS = at_most(0, *ATOMICS, text="no atomics")
EXERCISES = {
    "step_back": Exercise(
        minutes=12,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "z = a @ rest / (1 + a @ faded)": "Sherman and Morrison: the inverse of a "
                "diagonal matrix plus a rank-one matrix costs a division.",
                "return rest - torch.outer(faded, z), z": "Subtracts the rest of the token's "
                "contribution; for that only z was missing.",
            },
            instead={
                "torch.linalg.solve": "works for any matrix, but takes K³ operations in many "
                "steps; this way takes 4·K·V.",
                "z from memory": "stores and loads V values per token, and avoids a division by "
                "a number that can be close to zero.",
            },
            stretch="Step back over two tokens at once. Which 2 × 2 matrix do you have to invert?",
        ),
        hints=(
            "Subtract k·v first, which needs nothing else. Then divide each row by its decay. "
            "What still has to be subtracted?",
            "rest = the state before + outer(b / decay, z). Multiply it by a from the left. "
            "Since a @ state is z by definition, this leaves one equation for z.",
            "a @ rest = z + (a @ faded)·z with faded = b·exp(-w), so z = a @ rest / (1 + a @ "
            "faded); then rest - torch.outer(faded, z).",
        ),
        evidence=(
            calls(
                exactly_back,
                (("state", "ij"), ("z", "j")),
                ("a head of 4", "one token", _last(3, 4, 4)),
                ("more keys than values", "one token", _last(5, 8, 3)),
                ("decays of 0.545", "decay", _last(6, 6, 6, decay="most")),
                ("a head of 32", "one token", _last(30, 32, 32)),
                # What rounding has left is divided by the decay and by 1 + a·b/decay, 0.4 to 0.9.
                tolerance=1e-4,
            ),
            no_solver(_last(30, 32, 32)),
        ),
        symptoms={
            "one token": "Which rows does a step multiply by the decay, and what does it add "
            "afterwards? Undo that in reverse order. Is z right? The state follows from it.",
            "decay": "Divide both the remaining state and b by the decay.",
            "solver": "a times the divided state is an equation for z alone: one division solves "
            "it.",
        },
    ),
    "longest_span": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return int(math.log(2**24 * error) / -math.log(decay))": "Each step back "
                "divides the error by the decay, so it grows like a debt with interest.",
            },
            instead={
                "A loop that divides until the error is too large": "gives the same number, and "
                "shows where it comes from.",
            },
            stretch="With bfloat16 states rounding starts at 2⁻⁹. How long can a span be then?",
        ),
        hints=(
            "Rounding leaves 2⁻²⁴. How large is it after n divisions by the decay?",
            "2⁻²⁴ / decayⁿ ≤ error. Take logs on both sides, and watch which is negative.",
            "n ≤ log(2²⁴ · error) / -log(decay), rounded down: int(…).",
        ),
        evidence=(
            function_cases(
                ("RWKV-7's strongest decay", (0.5452, 1e-3), 16),
                ("half", (0.5, 1e-3), 14),
                ("a mild decay", (0.9, 1e-3), 92),
                ("a strong decay", (0.1, 1e-3), 4),
                ("more digits", (0.5452, 1e-5), 8),
                ("a decay near 1", (0.999, 1e-2), 12024),
                more=[(0.03 + n / 37, error) for n in range(35) for error in (3e-2, 7e-4, 2e-6)],
                whole=True,
            ),
        ),
        symptoms={
            "RWKV-7's strongest decay": "2⁻²⁴ is 6e-8, so the error may grow by a factor of 2²⁴ "
            "· error. Count whole steps: round down.",
            "half": "Round down: one more token would exceed the error.",
            "a mild decay": "A step divides the error by the decay: use the parameter.",
            "more digits": "The error may grow from 2⁻²⁴ to `error`: use the parameter.",
        },
    ),
    "forward_sweep": Exercise(
        minutes=8,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "tl.store(z + i_t * V + o_v, b_z, m_v)": "One row per token. It saves the "
                "division by 1 + a·b / decay.",
                "if ((t + 1) % C == 0) | (t == T - 1):": "After each whole span, and after the "
                "last token, where the reverse sweep begins.",
            },
            instead={
                "Keep the states before each span": "means that the sweep runs each span forward "
                "first. The library's `recurrent` does that, and it is right for any decay.",
            },
            stretch="Keep the states in bfloat16. With which error does a span of 16 begin?",
        ),
        hints=(
            "z is stored for every token, kept only for some.",
            "A span is full when (t + 1) % C == 0; the last one may be shorter. Store to span t "
            "// C of ceil(T / C), the state of head i_h in row i_b.",
            "tl.store(z + i_t * V + o_v, b_z, m_v); if ((t + 1) % C == 0) | (t == T - 1): i_c = "
            "(i_b * tl.cdiv(T, C) + t // C) * H + i_h; tl.store(kept + i_c * K * V + o_s, b_s, "
            "m_s).",
        ),
        evidence=wkv7_triton_kernel(
            launch,
            FORWARD_TENSORS,
            FORWARD_WRITES,
            FORWARD,
            no_spills(),
            NO_ATOMICS,
            limits=(reads(3, *"rwkab"), reads(1, "v", "s0"), writes(1, *FORWARD_WRITES)),
            blocks=small,
        ),
        symptoms={
            "by hand": "One token is a span by itself, and its state is kept.",
            "one token": "z is what the token read, before it changed the state.",
            "span": "A span ends where (t + 1) % C is 0; the last one ends with the last token.",
            "never written": "Every token has a z. A span has C tokens; the last one is kept even "
            "if it is shorter.",
        },
    ),
    "backward_sweep": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_s *= tl.exp(-b_w)[:, None]": "The only division, and the only place where "
                "digits are lost.",
                "b_da = tl.sum(b_s * b_dz[None, :], 1)": "a read the state before the token; r "
                "read the one after it.",
                "b_g = tl.exp(b_w)[:, None] * b_g + b_a[:, None] * b_dz[None, :]": "S entered "
                "the next state twice: decayed, and through z.",
            },
            instead={
                "tl.atomic_add of the five sums": "needs no shares and no sum over them, but "
                "zeroed tensors, and the last digits differ every time. wind_rwkv's long heads "
                "do it.",
                "Run each span forward and keep its states": "needs no division and is right "
                "for any decay, but each program needs memory for C tiles.",
            },
            stretch="dw, dk, db, da and dr are five sums along the values. Which two need not "
            "wait for the step back?",
        ),
        hints=(
            "Three gaps: what follows from o (two lines), the step back with z (two lines), and "
            "seven lines of the table in the lesson.",
            "Axis 0 is keys, axis 1 is values. dr sums S over values before the step back; dk "
            "and db sum G over values, dv and dz over keys; da and dw use the S before the "
            "token. Use G first, then update it.",
            "b_dr = tl.sum(b_s * b_do[None, :], 1); b_g += b_r[:, None] * b_do[None, :] | b_s = "
            "(b_s - b·z - k·v) * tl.exp(-b_w)[:, None] | b_dz = tl.sum(b_g * b_b[:, None], 0); "
            "b_da = tl.sum(b_s * b_dz[None, :], 1); b_dw = tl.exp(b_w) * tl.sum(b_s * b_g, 1); "
            "b_g = tl.exp(b_w)[:, None] * b_g + b_a[:, None] * b_dz[None, :].",
        ),
        evidence=wkv7_triton_kernel(
            launch_back,
            BACKWARD_TENSORS,
            BACKWARD_WRITES,
            BACKWARD,
            no_spills(),
            NO_ATOMICS,
            limits=(
                reads(3, *"rwkab"),
                reads(1, "v", "z", "do", "kept", "ds1"),
                writes(1, *BACKWARD_WRITES),
                exps(3 * 8 * 6 * 16),
            ),
            blocks=small,
        ),
        symptoms={
            "by hand": "With one token and an empty state, S before it is 0, so da and dw are 0. "
            "dr is k times (v·do). ds0 is G after the step, including a·dz.",
            "one token": "dr uses the state after the token; da and dw use the one before it.",
            "state": "Use G first. Then it decays along the keys and gets a·dz.",
            "decay": "A step back divides each row, a key, by its decay: multiply by exp(-w).",
            "span": "At the end of a span, replace the stepped-back state by the kept one.",
        },
    ),
}
