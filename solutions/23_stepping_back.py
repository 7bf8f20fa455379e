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
from rwkv_lessons.lab.evidence.wkv7_functions import calls
from rwkv_lessons.runtime.launch_numba import ceil_div


def step_back(s, w, k, v, a, b):
    """The state before a token of one head, and z, what the token read of it.

    s is [K, V], the state after the token; w, k, a, b are [K], w the log decay; v is [V]. Returns
    a state, [K, V], and z, [V].
    """
    ### BEGIN SOLUTION
    rest = (s - torch.outer(k, v)) * torch.exp(-w)[:, None]  # the state before + outer(faded, z)
    faded = b * torch.exp(-w)
    z = a @ rest / (1 + a @ faded)
    return rest - torch.outer(faded, z), z
    ### END SOLUTION


def longest_span(decay, error):
    """How many tokens may be stepped back, at a decay below 1, until 2⁻²⁴ has grown to `error`."""
    ### BEGIN SOLUTION
    return int(math.log(2**24 * error) / -math.log(decay))
    ### END SOLUTION


@triton.jit
def forward_sweep(
    r, w, k, v, a, b, s0, o, s1, z, kept,
    T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Lesson 22's kernel, which keeps what the gradients start from; grid (NV, B·H).

    z is [B, T, H, V]: what each token read. kept is [B, spans, H, K, V]: the state after the last
    token of every span of C, and after the last token of all.
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

    Tensors as in `forward_sweep`; do, dv are [B, T, H, V], ds0, ds1 [B, H, K, V]. Of dr, dw, dk,
    da, db, which are sums over values, each block of values leaves its share: [NV, B, T, H, K].
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
    """Blocks in the interpreter."""
    return {"BK": triton.next_power_of_2(K), "BV": 4, "C": 4}


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
                "z = a @ rest / (1 + a @ faded)": "Sherman and Morrison: the inverse of a diagonal "
                "matrix plus a rank of one costs a division.",
                "return rest - torch.outer(faded, z), z": "Of what `rest` has too much, z is all "
                "that was missing.",
            },
            instead={
                "torch.linalg.solve": "any matrix, in K³ operations and many steps; this one takes "
                "4·K·V.",
                "z from memory": "V numbers a token to store and to load, and no division by what "
                "may be near zero.",
            },
            stretch="Step back over two tokens at once. Which 2 × 2 matrix has to be inverted?",
        ),
        hints=(
            "Take k·v out first; that needs nothing else. Then divide each row by its decay. What "
            "is still too much?",
            "rest = the state before + outer(b / decay, z). Multiply it by a from the left: a @ "
            "state is z by definition, so one equation for z is left.",
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
        ),
        symptoms={
            "one token": "Which rows does a step multiply by the decay, and what does it add "
            "afterwards? Undo it in reverse. And is z right? The state follows from it.",
            "decay": "Both what remains and b are divided by the decay.",
        },
    ),
    "longest_span": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return int(math.log(2**24 * error) / -math.log(decay))": "Every step back divides "
                "the error by the decay: it grows like a debt with interest.",
            },
            instead={
                "A loop that divides until it is too much": "the same number, and it shows where "
                "it comes from.",
            },
            stretch="In bfloat16 states rounding starts at 2⁻⁹. What is left of the span?",
        ),
        hints=(
            "Rounding leaves 2⁻²⁴. What has become of it after n divisions by the decay?",
            "2⁻²⁴ / decayⁿ ≤ error. Take logs on both sides, and mind which is negative.",
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
            "RWKV-7's strongest decay": "2⁻²⁴ is 6e-8; from there to the error it is a factor of "
            "2²⁴ · error. Whole steps: round down.",
            "half": "Round down: one more token would be too much.",
        },
    ),
    "forward_sweep": Exercise(
        minutes=8,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "tl.store(z + i_t * V + o_v, b_z, m_v)": "One row a token: it saves the division "
                "by 1 + a·b / decay.",
                "if ((t + 1) % C == 0) | (t == T - 1):": "After each whole span, and after the "
                "last token, where the sweep back begins.",
            },
            instead={
                "The states before each span": "the sweep would have to run each span forward "
                "first; that is what the library's `recurrent` does, and it is right for any "
                "decay.",
            },
            stretch="Keep the states in bfloat16. Which error does a span of 16 begin with?",
        ),
        hints=(
            "z goes out with every token; kept only with some.",
            "A span is full when (t + 1) % C == 0; the last one may be shorter. Span number "
            "t // C of ceil(T / C), as a state of head i_h in row i_b.",
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
            "by hand": "One token is a span of its own, and its state is kept.",
            "one token": "z is what the token read, before it changed the state.",
            "span": "A span ends where (t + 1) % C is 0, and the last one with the last token.",
            "never written": "Every token has a z. The last span is kept even if it is short.",
        },
    ),
    "backward_sweep": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_s *= tl.exp(-b_w)[:, None]": "The one division, and the only place where "
                "digits are lost.",
                "b_da = tl.sum(b_s * b_dz[None, :], 1)": "The reader a met the state before the "
                "token, r the one after it.",
                "b_g = tl.exp(b_w)[:, None] * b_g + b_a[:, None] * b_dz[None, :]": "S went into "
                "the next state twice: decayed, and through z.",
            },
            instead={
                "tl.atomic_add of the five sums": "no parts and no sum over them, zeroed tensors, "
                "and other last digits every time; wind_rwkv's long heads do it.",
                "The states of a span, run forward and kept": "no division, right for any decay, "
                "and C tiles of memory for each program.",
            },
            stretch="dw, dk, db, da and dr are five sums along the values. Which two need not "
            "wait for the step back?",
        ),
        hints=(
            "Three gaps: what o tells (two lines), the step back with z (two lines), and seven "
            "lines of the table in the lesson.",
            "Axis 0 are the keys, axis 1 the values. dr sums S over values before it is stepped "
            "back; dk and db sum G over values, dv and dz over keys; da and dw use the S before "
            "the token. G is used first, then moved on.",
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
            "by hand": "One token from an empty state: S before it is 0, so da and dw are 0; "
            "dr is k·v against do. ds0 is all of G that the step leaves, a·dz with it.",
            "one token": "dr looks at the state after the token, da and dw at the one before it.",
            "state": "G is used first; then it decays along the keys, and gets a·dz.",
            "decay": "A step back divides each row, a key, by its decay: exp(-w).",
            "span": "At the end of a span the kept state takes the place of what was stepped back.",
        },
    ),
}
