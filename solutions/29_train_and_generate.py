"""A language model around the kernels: how it starts, how it learns, and how it writes."""

import numpy as np
import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv6_triton import Size
from rwkv_lessons.lab.evidence.wkv7_functions import calls
from rwkv_lessons.lab.lessons.lesson_29.evidence import one_token_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div


def shifted(x, before):
    """The token before each token: x, shifted by one place along T.

    x is [B, T, C]; before is [B, C], the token before the first. Returns [B, T, C].
    """
    ### BEGIN SOLUTION
    return torch.cat([before[:, None], x[:, :-1]], 1)
    ### END SOLUTION


def rates(C, depth):
    """x of the decay exp(-exp(x)) of each channel before training, [C].

    Channel 0 has -6, the last one -1, and channel n between them -6 + 5 · (n / (C - 1))^p, with
    p = 0.7 + 1.3 · depth. depth runs from 0, the first layer, to 1, the last one.
    """
    ### BEGIN SOLUTION
    n = torch.arange(C) / (C - 1)
    return -6 + 5 * n ** (0.7 + 1.3 * depth)
    ### END SOLUTION


def learns(name, ndim, weight_decay=0.1):
    """How a parameter learns: its multiple of the learning rate, and its weight decay.

    Parameters whose name ends in "decay" learn at twice the rate, others at the plain rate. Only
    matrices, with 2 axes and a name that ends in "weight", have a weight decay; others have 0.
    """
    ### BEGIN SOLUTION
    times = 2.0 if name.endswith("decay") else 1.0
    matrix = ndim == 2 and name.endswith("weight")
    return times, weight_decay if matrix else 0.0
    ### END SOLUTION


@triton.jit
def kernel(
    r, k, v, w, u, s0, o, s1,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token: one program for BV values of a head of a batch row; grid (NV, B·H).

    r, k, w are [B, 1, H, K], with w the log decay; v, o are [B, 1, H, V]; u is [H, K]; s0, s1 are
    [B, H, K, V] and may be the same memory; all float32. BK ≥ K.
    """
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]
    ### BEGIN SOLUTION
    b_s = tl.load(s0 + o_s, m_s, 0)
    b_r = tl.load(r + i_bh * K + o_k, m_k, 0)
    b_k = tl.load(k + i_bh * K + o_k, m_k, 0)
    b_w = tl.load(w + i_bh * K + o_k, m_k, 0)
    b_u = tl.load(u + i_bh % H * K + o_k, m_k, 0)
    b_v = tl.load(v + i_bh * V + o_v, m_v, 0)
    b_kv = b_k[:, None] * b_v[None, :]
    b_o = tl.sum(b_r[:, None] * (b_s + b_u[:, None] * b_kv), 0)
    tl.store(o + i_bh * V + o_v, b_o, m_v)
    tl.store(s1 + o_s, tl.exp(b_w)[:, None] * b_s + b_kv, m_s)
    ### END SOLUTION


def launch(B, T, H, K, V, BK=None, BV=16):
    """The grid, and the kernel's sizes; T is 1. One warp per program."""
    sizes = {"H": H, "K": K, "V": V, "BK": BK or triton.next_power_of_2(K), "BV": BV}
    return (ceil_div(V, BV), B * H), sizes | {"num_warps": 1}


TENSORS = ("r", "k", "v", "w", "u", "s0", "o", "s1")
WRITES = ("o", "s1")


def _shifting(B, T, C):
    def make():
        g = torch.Generator().manual_seed(T)
        return torch.randn(B, T, C, generator=g), torch.randn(B, C, generator=g)

    return make


def _exact_shifted(x, before):
    return torch.stack([before, *x.unbind(1)[:-1]], 1)


def _exact_rates(C, depth):
    return lambda: np.array([-6 + 5 * (n / (C - 1)) ** (0.7 + 1.3 * depth) for n in range(C)])


EXERCISES = {
    "shifted": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "torch.cat([before[:, None], x[:, :-1]], 1)": "The token before the first one "
                "comes from the state; in generation it is the only one.",
            },
            instead={
                "x.roll(1, 1)": "puts the last token in front of the first, so the model sees "
                "the future.",
            },
            stretch="How many tokens back can the last of 12 layers see through shifts alone?",
        ),
        hints=(
            "Which token of x has no place in the result, and which one is new?",
            "The last one has no place; `before` comes first. torch.cat along T.",
            "return torch.cat([before[:, None], x[:, :-1]], 1)",
        ),
        evidence=(
            calls(
                _exact_shifted,
                (("y", "btc"),),
                ("three tokens", "first", _shifting(1, 3, 2)),
                ("one token", "one token", _shifting(2, 1, 4)),
                ("batch rows", "first", _shifting(3, 5, 4)),
                ("a long sequence", "first", _shifting(2, 300, 3)),
            ),
        ),
        symptoms={
            "first": "The first place holds `before`, the second holds the first token.",
            "one token": "With a single token the result is just `before`, as [B, 1, C].",
        },
    ),
    "rates": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "-6 + 5 * n ** (0.7 + 1.3 * depth)": "A larger power keeps more channels near "
                "-6, so deep layers start with longer memories.",
            },
            instead={
                "The same rate for all": "makes all channels alike, so they first have to become "
                "different. And if a rate is far from where it should be, its gradient is almost "
                "zero.",
            },
            stretch="After how many tokens is half of a state left, for x = -6 and for x = -1?",
        ),
        hints=(
            "n / (C - 1) runs from 0 to 1. What does a power do to it?",
            "torch.arange(C) / (C - 1), to the power of 0.7 + 1.3 · depth, times 5, minus 6.",
            "n = torch.arange(C) / (C - 1); return -6 + 5 * n ** (0.7 + 1.3 * depth)",
        ),
        evidence=(
            function_cases(
                ("the first layer", (6, 0.0), _exact_rates(6, 0.0)),
                ("the last layer", (6, 1.0), _exact_rates(6, 1.0)),
                ("a layer between", (64, 0.4), _exact_rates(64, 0.4)),
                ("many channels", (1030, 0.7), _exact_rates(1030, 0.7)),
                tensor=True,
            ),
        ),
        symptoms={
            "the first layer": "Channel 0 has -6 and the last channel exactly -1, so divide by C "
            "- 1. Take the share between them to the power p.",
            "the last layer": "In the last layer the power is 2, so the middle channels are "
            "still near -6.",
            "a layer between": "depth may be any number from 0 to 1: p = 0.7 + 1.3 · depth.",
        },
    ),
    "learns": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                'matrix = ndim == 2 and name.endswith("weight")': "A norm's weight has one axis; "
                'shares and bonuses do not end in "weight".',
            },
            instead={
                "Weight decay for all": "pulls decays towards x = 0, a memory of one token, and "
                "norms towards 0.",
            },
            stretch="Which other parameter would you give a learning rate of its own, and why?",
        ),
        hints=(
            "There are two independent questions: one about the name, one about the name and the "
            "number of axes.",
            'name.endswith("decay") decides between 2 and 1. A matrix has ndim == 2 and a name '
            'that ends in "weight".',
            'return (2.0 if name.endswith("decay") else 1.0), '
            '(weight_decay if ndim == 2 and name.endswith("weight") else 0.0)',
        ),
        evidence=(
            function_cases(
                ("a decay", ("blocks.0.1.decay", 1), (2.0, 0.0)),
                ("a matrix", ("blocks.3.1.out.weight", 2, 0.05), (1.0, 0.05)),
                ("a norm", ("blocks.0.0.weight", 1), (1.0, 0.0)),
                ("what is no weight", ("blocks.0.1.decay_down", 2), (1.0, 0.0)),
                ("a bonus", ("blocks.0.1.bonus", 2), (1.0, 0.0)),
                ("the end of a name", ("blocks.0.1.weights", 2, 0.2), (1.0, 0.0)),
                ("the end of a name", ("blocks.0.1.weight_up", 2, 0.2), (1.0, 0.0)),
                ("the end of a name", ("blocks.0.1.keyweight", 2, 0.2), (1.0, 0.2)),
                ("the end of a name", ("blocks.0.1.time_decay", 1, 0.2), (2.0, 0.0)),
                ("no weight decay", ("head.weight", 2, 0.0), (1.0, 0.0)),
                ("a convolution", ("blocks.0.1.weight", 3, 0.2), (1.0, 0.0)),
                ("a number alone", ("scale.weight", 0, 0.2), (1.0, 0.0)),
                ("both", ("blocks.0.1.weight.decay", 2, 0.5), (2.0, 0.0)),
                ("a large weight decay", ("emb.weight", 2, 3.0), (1.0, 3.0)),
            ),
        ),
        symptoms={
            "a decay": "A decay learns at twice the rate and has no weight decay.",
            "a matrix": "A matrix learns at the plain rate and has the given weight decay.",
            "a norm": "A norm's weight has one axis, so it is not a matrix.",
            "the end of a name": "Only the end of the name counts: name.endswith(…).",
            "no weight decay": "0 is a valid weight decay: return the one that was given.",
            "a convolution": "A matrix has exactly 2 axes.",
            "a number alone": "A matrix has exactly 2 axes.",
            "what is no weight": 'decay_down ends in "down": it is neither a decay nor a weight.',
        },
    ),
    "kernel": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "b_o = tl.sum(b_r[:, None] * (b_s + b_u[:, None] * b_kv), 0)": "Reads the state "
                "before the token, and the token itself through its bonus.",
                "tl.store(s1 + o_s, tl.exp(b_w)[:, None] * b_s + b_kv, m_s)": "Each element is "
                "written by the program that read it, so s1 may be s0.",
            },
            instead={
                "Blocks of keys, too": "allows smaller tiles, but the shares of o have to be "
                "added up. For one token the second launch costs more than it saves.",
            },
            stretch="Replay one step as a CUDA graph. Which arguments must keep their memory?",
        ),
        hints=(
            "It is lesson 13's kernel without the loop over tokens, and with all keys in one "
            "tile, so there are no shares of o.",
            "Six loads: the tile of s0; r, k and w at i_bh · K + o_k; u at i_bh % H · K + o_k; v "
            "at i_bh · V + o_v. Then o, a sum over axis 0; then two stores.",
            "b_kv = b_k[:, None] * b_v[None, :]; "
            "b_o = tl.sum(b_r[:, None] * (b_s + b_u[:, None] * b_kv), 0); "
            "tl.store(s1 + o_s, tl.exp(b_w)[:, None] * b_s + b_kv, m_s)",
        ),
        evidence=one_token_kernel(
            launch,
            TENSORS,
            WRITES,
            no_spills(),
            at_most(0, *ATOMICS, text="no atomics"),
            limits=(reads(3, *"rkw"), reads(1, "v", "s0"), writes(1, *WRITES), exps(3 * 4 * 16)),
            counted=Size((2, 1, 2, 10, 10)),
        ),
        symptoms={
            "by hand": "With an empty state, o is v times the sum of r·u·k over keys, and the "
            "new state is the outer product of k and v.",
            "state in": "With a state, check two things: o sums over the keys, axis 0, of the "
            "state before the token; the new state is exp(w), along the keys, times S, plus k·v.",
            "head": "Each head has its own bonus, and batch rows share it: i_bh % H.",
            "decay": "Each row of the tile, a key, is multiplied by its own exp(w): [:, None].",
        },
    ),
}
