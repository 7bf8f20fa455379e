"""Latent attention inside the models of the transformers package."""

from functools import partial
from itertools import product

import torch

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.lessons.lesson_28.evidence import (
    FINITE,
    AttentionCase,
    attention_answer,
    attention_call,
    same_text,
)
from rwkv_lessons.lab.lessons.lessons_25_28.evidence import (
    LatentSizes,
    no_loop_over,
    nothing_larger,
)


def attention(module, query, key, value, attention_mask, scaling, **_):
    """The attention that a model calls, with the latent instead of keys and values.

    query is [B, H, M, K + P], with RoPE on the last P; key is the latent [B, 1, N, R], value the
    keys with RoPE [B, 1, N, P]; attention_mask [B, 1, M, N] is added to the scaled scores.
    module.kv_b_proj.weight is [H·(K + V), R]: for each head K rows of w_k, then V rows of w_v.
    Returns [B, M, H, V], and None in place of the attention weights.
    """
    K, V = module.qk_nope_head_dim, module.v_head_dim
    H, M, P = query.shape[1], query.shape[2], query.shape[3] - K
    latent, k_rope = key[:, 0], value[:, 0]  # [B, N, R] and [B, N, P]
    ### BEGIN SOLUTION
    w_k, w_v = module.kv_b_proj.weight.unflatten(0, (H, K + V)).split([K, V], 1)
    q, q_rope = query.split([K, P], -1)
    q_latent = (q @ w_k).flatten(1, 2)  # [B, H·M, R]
    s = q_latent @ latent.mT + q_rope.flatten(1, 2) @ k_rope.mT
    s = s.unflatten(1, (H, M)) * scaling + attention_mask
    p = s.softmax(-1, dtype=torch.float32).to(query.dtype)
    o = (p.flatten(1, 2) @ latent).unflatten(1, (H, M)) @ w_v.mT  # [B, H, M, V]
    return o.transpose(1, 2), None
    ### END SOLUTION


def tokens_that_fit(bytes, B, layers, numbers, itemsize=2):
    """How many tokens each of B sequences can have with a cache of at most `bytes` bytes.

    numbers: per token, sequence and layer; itemsize: bytes of each.
    """
    ### BEGIN SOLUTION
    return int(bytes // (B * layers * numbers * itemsize))
    ### END SOLUTION


ODD = LatentSizes(B=2, M=3, N=11, H=5, K=6, P=4, V=7, R=12)
# Of two sequences: for one, torch broadcasts the latent over the heads without a copy.
COUNTED = LatentSizes(B=2, N=200, H=8, K=8, P=4, V=8, R=16)
EXERCISES = {
    "attention": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "module.kv_b_proj.weight.unflatten(0, (H, K + V))": "These are views: the weight "
                "is not copied.",
                "q_latent = (q @ w_k).flatten(1, 2)  # [B, H·M, R]": "Heads and queries are rows "
                "of one product, so the latent is not repeated.",
                "p = s.softmax(-1, dtype=torch.float32).to(query.dtype)": "The softmax sums in "
                "float32, as the model does.",
            },
            instead={
                "q @ w_k times latent[:, None]": "makes torch copy the latent H times, as many "
                "bytes as keys for every head, unless B is 1.",
            },
            stretch="Call the library's `mla` from here. Which of its arguments takes the place "
            "of attention_mask?",
        ),
        hints=(
            "It is lesson 25's `absorbed`, for M queries. First cut the weight into w_k and w_v, "
            "and the query into its two parts.",
            "weight.unflatten(0, (H, K + V)).split([K, V], 1) are w_k [H, K, R] and w_v [H, V, R]. "
            "q @ w_k is [B, H, M, R]; flatten heads and queries into rows before you multiply by "
            "the latent.",
            "s = ((q @ w_k).flatten(1, 2) @ latent.mT + q_rope.flatten(1, 2) @ k_rope.mT)"
            ".unflatten(1, (H, M)) * scaling + attention_mask; then p, p @ latent, @ w_v.mT, "
            "transpose(1, 2).",
        ),
        evidence=(
            attention_answer(
                AttentionCase("one query, one token", "by hand", LatentSizes()),
                AttentionCase("one query, 6 tokens", "softmax", LatentSizes(N=6, R=16)),
                AttentionCase("heads have their own weights", "heads", LatentSizes(N=5, H=3, V=6)),
                AttentionCase("queries see the past only", "mask", LatentSizes(M=5, N=5, H=2)),
                AttentionCase(
                    "3 queries at the end of 8 tokens", "mask", LatentSizes(M=3, N=8, H=2)
                ),
                AttentionCase("padding on the left", "mask", LatentSizes(M=2, N=7, H=2), padding=4),
                AttentionCase(
                    "a mask of other numbers", "added", LatentSizes(B=2, M=3, N=7), FINITE
                ),
                AttentionCase("scores around 95", "overflow", LatentSizes(M=2, N=6), scores="high"),
                AttentionCase(
                    "scores around -150", "overflow", LatentSizes(M=2, N=6), scores="low"
                ),
                AttentionCase("another scale", "scale", LatentSizes(N=5, H=2), stretch=1.5),
                AttentionCase("odd sizes", "layout", ODD),
                AttentionCase("bfloat16", "half", ODD, dtype=torch.bfloat16),
            ),
            nothing_larger(partial(attention_call, COUNTED), 2 * 200 * 16, "as many as the latent"),
            no_loop_over(
                heads=lambda n: attention_call(COUNTED._replace(H=n)),
                tokens=lambda n: attention_call(COUNTED._replace(N=n)),
            ),
            same_text("MiniCPM3", "DeepseekV3"),
        ),
        symptoms={
            "by hand": "With one token p is 1, so o is w_v times the latent.",
            "softmax": "Add both parts of the score, multiply by `scaling`, then take one softmax.",
            "heads": "The weight's rows come head by head: K rows of w_k, V rows of w_v, then "
            "the next head. The output is [B, M, H, V].",
            "mask": "Add attention_mask to the scores before the softmax.",
            "added": "Add the mask, whatever its numbers, to the scaled scores. Every batch row "
            "has its own mask.",
            "overflow": "exp(95) is infinite in float32: use softmax, which subtracts the maximum.",
            "scale": "Use the argument `scaling`: models that stretch their positions (YaRN) do "
            "not have 1/√(K + P).",
            "loop over tokens": "All tokens at once: the latent of a sequence is one matrix "
            "[N, R].",
            "half": "The output has the model's type, `query.dtype`; take the softmax in float32.",
            "largest": "Do not compute keys or values for heads and tokens: apply w_k to the "
            "query, and w_v to the sum over the latent. A product [B, H, M, R] @ [B, 1, R, N] "
            "copies the latent for every head: make heads and queries the rows of one product.",
            "layout": "The model expects [B, M, H, V]: transpose at the end.",
        },
    ),
    "tokens_that_fit": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return int(bytes // (B * layers * numbers * itemsize))": "Every layer caches "
                "its own numbers for every token of every sequence.",
            },
            instead={
                "A cache in pages": "reserves no room for tokens that never come; on average one "
                "page per sequence is half empty.",
            },
            stretch="With 130 GB, 62 layers and 576 numbers: how many users with 8,000 tokens "
            "each?",
        ),
        hints=(
            "How many bytes does one more token cost, in all sequences and layers?",
            "A token takes B · layers · numbers · itemsize bytes, and only whole tokens count.",
            "return int(bytes // (B * layers * numbers * itemsize))",
        ),
        evidence=(
            function_cases(
                ("one sequence, one layer", (1000, 1, 1, 10), 50),
                ("layers and sequences", (10_000, 2, 5, 10, 1), 100),
                ("whole tokens", (999, 1, 1, 10), 49),
                ("float32", (1000, 1, 1, 10, 4), 25),
                ("a whole GPU", (130 * 10**9, 3, 62, 576), 606_705),
                more=list(product((10**9 + 7, 141 * 10**9), (1, 7), (1, 62), (288, 576), (1, 2))),
            ),
        ),
        symptoms={
            "one sequence, one layer": "10 numbers of 2 bytes per token.",
            "layers and sequences": "Every layer and every sequence has its own cache.",
            "whole tokens": "Round down.",
        },
    ),
}
