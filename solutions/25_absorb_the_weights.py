"""MLA's decoding step without keys and values: the weights go to the query and to the output."""

from itertools import product

import torch

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.lessons.lessons_25_28.evidence import (
    LatentCase,
    LatentSizes,
    no_loop_over,
    nothing_larger,
    step,
    torch_answer,
)


def expanded(q, q_rope, latent, k_rope, w_k, w_v, scale):
    """Attention of one query per sequence, with keys and values for every head and token.

    q [B, H, K] and q_rope [B, H, P] with a cache of latent [B, N, R] and k_rope [B, N, P];
    weights w_k [H, K, R] and w_v [H, V, R]. Returns o, [B, H, V].
    """
    k = torch.einsum("bnr,hkr->bnhk", latent, w_k)
    v = torch.einsum("bnr,hvr->bnhv", latent, w_v)
    s = torch.einsum("bhk,bnhk->bhn", q, k) + torch.einsum("bhp,bnp->bhn", q_rope, k_rope)
    p = (s * scale).softmax(-1)
    return torch.einsum("bhn,bnhv->bhv", p, v)


def absorbed(q, q_rope, latent, k_rope, w_k, w_v, scale):
    """The same, computed from the latent: no tensor has both an axis N and an axis K or V.

    q [B, H, K] and q_rope [B, H, P] with a cache of latent [B, N, R] and k_rope [B, N, P];
    weights w_k [H, K, R] and w_v [H, V, R]. Returns o, [B, H, V].
    """
    ### BEGIN SOLUTION
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)
    s = q_latent @ latent.mT + q_rope @ k_rope.mT
    p = (s * scale).softmax(-1)
    return torch.einsum("bhr,hvr->bhv", p @ latent, w_v)
    ### END SOLUTION


def value_flops(rows, N, R, V):
    """Additions and multiplications from the weights `p` to the output of one head.

    rows queries share N tokens; p [rows, N], latent [N, R] and w_v [V, R] are given. A product of
    an a × b and a b × c matrix takes 2·a·b·c.

    Returns:
        early: latent times w_v first, then p times the values;
        late: p times latent first, then that times w_v.
    """
    ### BEGIN SOLUTION
    early = 2 * N * R * V + 2 * rows * N * V
    late = 2 * rows * N * R + 2 * rows * R * V
    return early, late
    ### END SOLUTION


def break_even(R, V):
    """The number of rows, not rounded, at which early costs as much as late if N is very large."""
    ### BEGIN SOLUTION
    return V / (1 - V / R)
    ### END SOLUTION


ARGUMENTS = ("q", "q_rope", "latent", "k_rope", "w_k", "w_v", "scale")
COUNTED = LatentSizes(B=2, N=100, H=4, K=8, P=4, V=8, R=16)
SYMPTOMS = {
    "by hand": "With one token the softmax is 1 whatever the scores are, so o is w_v times the "
    "latent.",
    "softmax": "Add both parts of the score, scale the sum, then take one softmax over N.",
    "overflow": "exp(95) is infinite in float32 and exp(-150) is 0: subtract the largest score "
    "first.",
    "own maximum": "Each head has its own scores: subtract the largest of the same head.",
    "long": "It is right for short caches and few heads. Is there a number where N or H belongs?",
    "head": "Every head has its own w_k and w_v; all heads share the latent.",
    "batch": "Every sequence has its own latent.",
    "scale": "Use the argument `scale`: it need not be 1/√(K + P).",
    "loop over tokens": "All tokens at once: the latent of a sequence is one matrix [N, R].",
    "largest": "Multiply the query by w_k, not the latent; multiply p by the latent before w_v. "
    "Heads are rows of one matrix [H, R] per sequence, so nothing is repeated and the cache is "
    "not copied.",
}

EXERCISES = {
    "absorbed": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                'q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)': "The weight is applied to one "
                "query instead of N tokens.",
                "s = q_latent @ latent.mT + q_rope @ k_rope.mT": "All heads are rows of one "
                "product with the latent.",
            },
            instead={
                "Compute keys and values for every head": "writes N·H·(K + V) numbers and reads "
                "them again. It pays if many queries share them.",
            },
            stretch="Multiply w_k into the query's own projection ahead of time. When is the "
            "product larger than both?",
        ),
        hints=(
            "Move the brackets: q·(w_k·latent) is (q·w_k)·latent, and Σ p·(w_v·latent) is w_v·(Σ "
            "p·latent).",
            "q times w_k gives [B, H, R]. Per sequence this is a matrix [H, R]: one product with "
            "the transposed latent gives the scores of all heads.",
            'einsum("bhk,hkr->bhr", q, w_k) @ latent.mT + q_rope @ k_rope.mT are the scores; at '
            "the end, p @ latent goes through w_v.",
        ),
        evidence=(
            torch_answer(
                LatentCase("one token, one head", "by hand", LatentSizes()),
                LatentCase("a softmax over the tokens", "softmax", LatentSizes(N=5)),
                LatentCase("heads have their own weights", "head", LatentSizes(N=3, H=3)),
                LatentCase("sequences have their own latent", "batch", LatentSizes(B=2, N=4, H=2)),
                LatentCase("scores around 95", "overflow", LatentSizes(N=5, H=2), scores="high"),
                LatentCase("scores around -150", "overflow", LatentSizes(N=5, H=2), scores="low"),
                LatentCase(
                    "odd sizes", "softmax", LatentSizes(B=3, N=37, H=5, K=6, P=3, V=7, R=16)
                ),
                LatentCase("heads far apart", "own maximum", LatentSizes(N=5, H=3), scores="apart"),
                LatentCase("another scale", "scale", LatentSizes(N=5, H=2), stretch=1.5),
                LatentCase("a long cache", "long", LatentSizes(N=3000, H=130, K=3, V=5)),
            ),
            nothing_larger(lambda: step(COUNTED, ARGUMENTS), 2 * 100 * 16, "as many as the latent"),
            no_loop_over(
                heads=lambda n: step(COUNTED._replace(H=n), ARGUMENTS),
                tokens=lambda n: step(COUNTED._replace(N=n), ARGUMENTS),
            ),
        ),
        symptoms=SYMPTOMS,
    ),
    "value_flops": Exercise(
        minutes=6,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "early = 2 * N * R * V + 2 * rows * N * V": "Takes every token through w_v once, "
                "whatever the number of rows.",
                "late = 2 * rows * N * R + 2 * rows * R * V": "Each row works on R numbers per "
                "token instead of V.",
            },
            instead={
                "Count bytes instead of operations": "decides in decoding: late reads only the "
                "latent.",
            },
            stretch="Do the same for the scores: q·(w_k·c) or (q·w_k)·c, including the part for "
            "RoPE.",
        ),
        hints=(
            "There are two products each way. Write down the sizes of all four.",
            "early: [N, R] × [R, V], then [rows, N] × [N, V]. late: [rows, N] × [N, R], then …",
            "early = 2·N·R·V + 2·rows·N·V; late = 2·rows·N·R + 2·rows·R·V.",
        ),
        evidence=(
            function_cases(
                ("one of everything", (1, 1, 1, 1), (4, 4)),
                ("one row, many tokens", (1, 1000, 4, 2), (16000 + 4000, 8000 + 16)),
                ("many rows", (100, 3, 4, 2), (48 + 1200, 2400 + 1600)),
                ("a block of 16 rows", (16, 128, 256, 64), (4456448, 1572864)),
                more=list(product((1, 7, 300), (1, 50, 4096), (24, 512), (5, 24, 128))),
            ),
        ),
        symptoms={
            "one of everything": "There are two products each way, of 2·a·b·c operations.",
            "one row, many tokens": "early multiplies every token by w_v; late multiplies only "
            "the one row.",
            "many rows": "late multiplies every row by w_v; early multiplies every token, once "
            "for all rows.",
        },
    ),
    "break_even": Exercise(
        minutes=4,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "return V / (1 - V / R)": "R·V + rows·V = rows·R is what remains of both if N is "
                "large.",
            },
            instead={
                "Keeping N": "late also has 2·rows·R·V once, so with short sequences it pays off "
                "a little later.",
            },
            stretch="Where do they meet in bytes, if the values are computed once and kept?",
        ),
        hints=(
            "Divide both by 2·N and let N grow. Which term disappears?",
            "R·V + rows·V remains on one side, rows·R on the other.",
            "rows · (R − V) = R · V: rows = R·V / (R − V), or V / (1 − V/R).",
        ),
        evidence=(
            function_cases(
                ("R twice V", (2, 1), 2.0),
                ("MiniCPM3", (256, 64), 256 / 3),
                ("DeepSeek-V3", (512, 128), 512 / 3),
                ("an odd size", (192, 128), 384.0),
                more=[(R, V) for R in (31, 200, 1000) for V in (1, 7, 30)],
            ),
        ),
        symptoms={
            "R twice V": "Set R·V + rows·V equal to rows·R.",
            "MiniCPM3": "Set R·V + rows·V equal to rows·R, and do not round.",
        },
    ),
}
