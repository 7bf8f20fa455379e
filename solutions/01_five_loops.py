"""The recurrence in torch, then as five loops; and the least it has to compute and to move."""

import math

import numpy as np
import torch
from numba import njit
from numba.core.errors import NumbaError

from rwkv_lessons.lab.course.check import FAILED, PASSED, Row
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.course.hints import HINTS
from rwkv_lessons.lab.evidence.compare import Difference, compare
from rwkv_lessons.lab.evidence.cuda import wkv5_case
from rwkv_lessons.lab.evidence.functions import called, function_cases
from warplens.faults import EndlessLoop, KernelFault
from warplens.steps import limited


def torch_loop(r, k, v, w, u):
    B, T, H, N = r.shape
    r, k, v, o = r.float(), k.float(), v.float(), torch.empty_like(v)
    decay, bonus = w.exp()[:, :, None], u[:, :, None]  # [H, N, 1]: one number per row
    s = torch.zeros(B, H, N, N, device=v.device)
    for t in range(T):
        kv = k[:, t, :, :, None] @ v[:, t, :, None, :]  # [B, H, N, N]
        o[:, t] = (r[:, t, :, None, :] @ (bonus * kv + s)).squeeze(2)
        s = decay * s + kv
    return o, s


def five_loops(r, k, v, decay, u):
    """WKV-5 from an empty state, with one loop each over b, h, t, j and i.

    r, k, v are [B, T, H, N]; decay and u are [H, N]; NumPy float32. Returns o, [B, T, H, N].
    """
    B, T, H, N = r.shape
    o = np.zeros_like(v)
    ### BEGIN SOLUTION
    for b in range(B):
        for h in range(H):
            s = np.zeros((N, N), np.float32)
            for t in range(T):
                for j in range(N):
                    for i in range(N):
                        kv = k[b, t, h, i] * v[b, t, h, j]
                        o[b, t, h, j] += r[b, t, h, i] * (u[h, i] * kv + s[i, j])
                        s[i, j] = decay[h, i] * s[i, j] + kv
    ### END SOLUTION
    return o


def flops(B, T, H, N):
    """Additions and multiplications of one pass over five loops, one each; index sums are free."""
    ### BEGIN SOLUTION
    return 7 * B * T * H * N * N
    ### END SOLUTION


def least_bytes(B, T, H, N, itemsize):
    """The fewest bytes that must move: every input read once, the output written once.

    r, k, v and o have `itemsize` bytes an element; decay and u are float32. The state starts
    empty and is thrown away at the end: it never has to leave the chip.
    """
    ### BEGIN SOLUTION
    return 4 * B * T * H * N * itemsize + 2 * H * N * 4
    ### END SOLUTION


LOOPS = "hint: write plain loops over b, h, t, j and i, and handle one number at a time."
CASES = (  # the property, its hint, B T H N
    ("one token", "by hand", (1, 1, 1, 4)),
    ("the state carries from token to token", "state", (1, 3, 1, 4)),
    ("every head has its own state, decay and bonus", "head", (1, 3, 2, 8)),
    ("every batch row starts from an empty state", "batch", (2, 3, 2, 8)),
    ("17 tokens, odd sizes", "state", (3, 17, 1, 5)),
    ("70 tokens", "state", (1, 70, 1, 4)),
    ("heads of 64", "head", (1, 2, 1, 64)),  # and nothing that ends here runs on when compiled
)


def answer(function, exercise):
    """Calls the function on NumPy arrays and holds the result against float64."""
    for name, symptom, shape in CASES:
        inputs, want = wkv5_case(shape)
        loops = getattr(function, "py_func", function)  # under a learner's own njit
        try:
            compare(called(loops, *(x.numpy() for x in inputs)), want)
        except (Difference, KernelFault) as error:
            symptom = getattr(error, "symptom", None) or symptom
            size = " ".join(f"{letter}={n}" for letter, n in zip("BTHN", shape, strict=True))
            return Row(
                "answer", FAILED, f"{name} ({size})", (str(error), f"hint: {HINTS[symptom]}")
            )
    if told := _too_few_lines(loops):
        return Row("answer", FAILED, "NumPy runs some of the five loops", told)
    return Row("answer", PASSED, f"{len(CASES)} cases, against float64")


def _too_few_lines(loops):
    """What is said of a function whose loops are not all its own; nothing if they are.

    Five loops execute their innermost lines B·T·H·N·N times, whatever these are.
    """
    *_, (_, _, shape) = CASES
    times = math.prod(shape) * shape[-1]
    inputs, _ = wkv5_case(shape)
    try:
        with limited(loops, lines=times - 1) as counted:
            loops(*(x.numpy() for x in inputs))
    except EndlessLoop:
        return ()
    return (f"fewer than B·T·H·N·N = {times:,} lines are executed", LOOPS) if counted else ()


def compiled(function, exercise):
    """Loops over single numbers are what `numba.njit` turns into machine code."""
    shape = (2, 70, 2, 64)
    inputs, want = wkv5_case(shape)
    ready = function if hasattr(function, "py_func") else njit(function)
    try:
        compare(ready(*(x.numpy() for x in inputs)), want)
    except (NumbaError, ImportError) as error:  # for @ it wants scipy
        first = str(error).splitlines()[0]
        return Row("njit", FAILED, "numba cannot compile it", (first, LOOPS))
    except Difference as error:
        return Row("njit", FAILED, f"B, T, H, N = {shape}", (str(error),))
    return Row("njit", PASSED, f"numba compiles it; B, T, H, N = {shape} agrees too")


answer.kind, compiled.kind = "answer", "njit"


WIDE = "The answer needs more than 32 bits: use Python's own integers."
SIZES = [(B, T, H, N) for B in (1, 3) for T in (2, 9) for H in (1, 5) for N in (3, 64)]
SIZES += [(8, 4096, 64, 64), (9, 4099, 65, 67)]  # too large for 32 bits, too odd for a float32
EXERCISES = {
    "five_loops": Exercise(
        minutes=10,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "s = np.zeros((N, N), np.float32)": "Every batch row and head has its own state.",
                "s[i, j] = decay[h, i] * s[i, j] + kv": "This line comes last: the output reads "
                "the state before this token is added.",
            },
            instead={
                "i outside, j inside": "the same sums, and s[i, j] is then read along memory, "
                "but no output is finished before the last i.",
            },
            stretch="Move the bonus out of the loop: Σ r·u·k·v is v_j times one number per "
            "token. How many operations are left?",
        ),
        hints=(
            "Order the loops b, h, t, j, i. What must start fresh for every (b, h)?",
            "s = np.zeros((N, N)) for every (b, h). Inside: kv, then add to o[b, t, h, j], and "
            "only then update s[i, j].",
            "kv = k[b,t,h,i] * v[b,t,h,j]; o[b,t,h,j] += r[b,t,h,i] * (u[h,i]*kv + s[i,j]); "
            "s[i,j] = decay[h,i]*s[i,j] + kv.",
        ),
        evidence=(answer, compiled),
    ),
    "flops": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return 7 * B * T * H * N * N": "The three innermost lines run B·T·H·N·N times "
                "and do 1 + 4 + 2 operations.",
            },
            instead={
                "Counting multiply-adds": "a GPU computes a·b + c in one instruction, so the 7 "
                "operations are 4 instructions.",
            },
            stretch="Count again with the bonus moved out of the inner loop and with the state "
            "stored as exp(w)·S.",
        ),
        hints=(
            "Only the innermost lines do arithmetic. How often do they run?",
            "B·T·H·N·N times. Now count every + and every * in the three lines, including the "
            "one in +=.",
            "kv takes 1, the output 4 (u·kv, + s, r·, +=), the state 2.",
        ),
        evidence=(
            function_cases(
                ("one token, one number of state", (1, 1, 1, 1), 7),
                ("a state of N × N", (1, 1, 1, 64), 7 * 64 * 64),
                ("batch, tokens and heads", (2, 3, 5, 4), 7 * 2 * 3 * 5 * 4 * 4),
                ("the recorded shape", (8, 4096, 64, 64), 7 * 2 ** (3 + 12 + 6 + 6 + 6)),
                more=SIZES,
            ),
        ),
        symptoms={
            "one token, one number of state": "kv takes one. The output takes four: u·kv, + s, "
            "r·, +=. The state takes two.",
            "a state of N × N": "Both of the inner loops run over N.",
            "the recorded shape": WIDE,
        },
    ),
    "least_bytes": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return 4 * B * T * H * N * itemsize + 2 * H * N * 4": "Four tensors are moved "
                "once. decay and u do not grow with T.",
            },
            instead={
                "Counting the state as well": "8·N·N more bytes per token and head; right only for "
                "a kernel that cannot keep the state on the chip.",
            },
            stretch="From which N on is arithmetic the limit for float16 on your own GPU?",
        ),
        hints=(
            "Which arrays are read, which are written, and how many elements does each have?",
            "r, k, v and o have B·T·H·N elements of `itemsize` bytes. decay and u have H·N.",
            "4·B·T·H·N·itemsize, and 2·H·N numbers of 4 bytes.",
        ),
        evidence=(
            function_cases(
                ("one of everything, float32", (1, 1, 1, 1, 4), 4 * 4 + 2 * 4),
                ("batch, tokens, heads, float32", (2, 3, 5, 4, 4), 4 * 120 * 4 + 2 * 20 * 4),
                ("float16, but decay and u stay float32", (1, 7, 2, 4, 2), 4 * 56 * 2 + 2 * 8 * 4),
                ("the recorded shape", (8, 4096, 64, 64, 4), 4 * 2**29 + 2 * 2**14),
                more=[(*sizes, itemsize) for sizes in SIZES for itemsize in (2, 4)],
            ),
        ),
        symptoms={
            "one of everything, float32": "Read: r, k, v, decay, u. Written: o.",
            "batch, tokens, heads, float32": "decay and u belong to a head: they are read once, "
            "not once per token.",
            "float16, but decay and u stay float32": "`itemsize` applies to r, k, v and o only.",
            "the recorded shape": WIDE,
        },
    ),
}
