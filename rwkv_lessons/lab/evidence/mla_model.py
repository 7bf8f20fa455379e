"""The evidence for a function that is a model's attention: by itself, and inside the model."""

from types import SimpleNamespace

import torch

from ..course.check import FAILED, PASSED, Row
from ..pictures.latent_model import attending, small_model, texts, written
from .cuda import Difference, compare, explained
from .mla import LETTERS, answers, problem, scale_of


def layer(known, sizes):
    """What an attention function sees of its module: sizes, and kv_b_proj with both weights."""
    weight = torch.cat([known["w_k"], known["w_v"]], 1).flatten(0, 1).float()  # [H·(K + V), R]
    return SimpleNamespace(
        qk_nope_head_dim=sizes.K,
        v_head_dim=sizes.V,
        kv_b_proj=SimpleNamespace(weight=weight),
    )


def call(function, sizes, padding=0):
    """Calls an attention function as a model does, on a problem of `evidence_mla`.

    Args:
        padding: tokens at the start that nobody may see.

    Returns:
        What it returned, and the answer [B, M, H, V] in float64.
    """
    known, scale = problem(sizes), scale_of(sizes)
    query = torch.cat([known["q"], known["q_rope"]], -1).transpose(1, 2).float()
    latent, k_rope = (known[x][:, None].float() for x in ("latent", "k_rope"))
    token, own = torch.arange(sizes.N), torch.arange(sizes.N - sizes.M, sizes.N)[:, None]
    hidden = (token > own) | (token < padding)
    mask = torch.zeros(sizes.M, sizes.N).masked_fill(hidden, torch.finfo(torch.float32).min)
    mask = mask.expand(sizes.B, 1, -1, -1)
    got = function(layer(known, sizes), query, latent, k_rope, mask, scaling=scale)
    names = ("q_latent", "q_rope", "latent", "k_rope", "w_v")
    seen = {x: known[x][:, padding:] if "n" in LETTERS[x] else known[x] for x in names}
    return got, answers(**seen, scale=scale)["o"]


def attention_answer(*cases):
    """Calls the function as a model does; each case is (name, symptom, sizes, padding)."""

    def answer(function, exercise):
        for name, symptom, sizes, padding in cases:
            try:
                got, want = call(function, sizes, padding)
                if not (isinstance(got, tuple) and len(got) == 2):
                    raise Difference(f"returned {type(got).__name__}, want (output, None)")
                compare(got[0], want, "bmhv")
            except Difference as error:
                details = explained(error, exercise, symptom)
                return Row("answer", FAILED, f"{name} ({sizes})", details)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


# Logits are of size 1, and float32 on both sides adds in another order.
LOGIT_TOLERANCE = 1e-4


def same_text(*kinds):
    """Puts the function into models of transformers: the same text as with their own attention."""

    def gather(function, exercise):
        for kind in kinds:
            model, given = small_model(kind), texts(9, 5)
            want, logits = written(model, given)
            with attending(model, function):
                got, ours = written(model, given)
            off = float((ours - logits).abs().max())
            if not torch.equal(got, want) or not off <= LOGIT_TOLERANCE:
                first = int((got != want).any(0).nonzero().flatten()[:1].sum())
                details = (f"first other token: number {first}; logits differ by up to {off:.2g}",)
                return Row("model", FAILED, f"{kind} writes another text", details)
        return Row("model", PASSED, f"{' and '.join(kinds)} write what they wrote before")

    gather.kind = "model"
    return gather
