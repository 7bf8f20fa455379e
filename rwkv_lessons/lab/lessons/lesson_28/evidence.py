"""The evidence for a function that is a model's attention: by itself, and inside the model."""

from types import SimpleNamespace
from typing import NamedTuple

import torch

from warplens.faults import KernelFault

from ...course.check import FAILED, PASSED, Row
from ...evidence.compare import TOLERANCE, Difference, WrongResult, compare
from ...evidence.functions import called, shown
from ...evidence.verdicts import failed
from ..lessons_25_28.evidence import LatentSizes, problem, scale_of
from .small_models import attending, sequences, small_model, written


class AttentionCase(NamedTuple):
    """One call of an attention function, named by the property that fails if it does."""

    name: str
    symptom: str
    sizes: LatentSizes
    padding: int = 0  # tokens at the start that nobody may see; FINITE: see `mask_of`
    scores: str = "tame"
    dtype: torch.dtype = torch.float32
    stretch: float = 1.0  # of the scale


def layer(values, sizes, dtype=torch.float32):
    """What an attention function sees of its module: sizes, and kv_b_proj with both weights."""
    weight = torch.cat([values["w_k"], values["w_v"]], 1).flatten(0, 1)  # [H·(K + V), R]
    linear = torch.nn.Linear(sizes.R, len(weight), bias=False, dtype=dtype)
    linear.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
    return SimpleNamespace(qk_nope_head_dim=sizes.K, v_head_dim=sizes.V, kv_b_proj=linear)


FINITE = -1


def mask_of(sizes, padding=0, dtype=torch.float32):
    """What is added to the scaled scores, [B, 1, M, N]: 0, or the least there is where hidden.

    With a padding of FINITE nothing is hidden: every pair, in every batch row, has a number of its
    own between −4 and 0, as a bias for the distance would be.
    """
    B, M, N = sizes.B, sizes.M, sizes.N
    if padding == FINITE:
        drawn = torch.rand(B, 1, M, N, generator=torch.Generator().manual_seed(N))
        return (-4 * drawn).to(dtype)
    token, own = torch.arange(N), torch.arange(N - M, N)[:, None]
    hidden = (token > own) | (token < padding)
    mask = torch.zeros(M, N, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    return mask.expand(B, 1, -1, -1)


def attention_call(sizes, padding=0, scores="tame", dtype=torch.float32, stretch=1.0):
    """Arguments of an attention function as a model calls it, on a problem of `evidence.mla`."""
    values = problem(sizes, dtype, scores)
    query = torch.cat([values["q"], values["q_rope"]], -1).transpose(1, 2).to(dtype)
    latent, k_rope = (values[x][:, None].to(dtype) for x in ("latent", "k_rope"))
    mask = mask_of(sizes, padding, dtype)
    return layer(values, sizes, dtype), query, latent, k_rope, mask, stretch * scale_of(sizes)


def exact_attention(sizes, padding=0, scores="tame", dtype=torch.float32, stretch=1.0):
    """The answer to `attention_call`, [B, M, H, V] in float64."""
    values = problem(sizes, dtype, scores)
    # From q itself: in `problem`, q_latent is rounded as a kernel gets it.
    q_latent = torch.einsum("bmhk,hkr->bmhr", values["q"], values["w_k"])
    s = torch.einsum("bmhr,bnr->bhmn", q_latent, values["latent"])
    s = s + torch.einsum("bmhp,bnp->bhmn", values["q_rope"], values["k_rope"])
    p = (s * stretch * scale_of(sizes) + mask_of(sizes, padding, dtype).double()).softmax(-1)
    return torch.einsum("bhmn,bnr,hvr->bmhv", p, values["latent"], values["w_v"])


# bfloat16 has 8 bits. The latent query, the weights, their sum and the output are each rounded
# once, scores twice: they are of size 4, and an error of 2⁻⁷ there is one of 2⁻⁷ in a weight.
BFLOAT16_TOLERANCE = 3e-2


def attention_answer(*cases: AttentionCase):
    """Calls the function as a model does, on copies, and holds it against float64."""

    def answer(function, exercise):
        for case in cases:
            *inputs, scale = attention_call(case.sizes, *case[3:])
            try:
                got = called(function, *inputs, scaling=scale)
                if not (isinstance(got, tuple) and len(got) == 2):
                    raise WrongResult(f"returned {type(got).__name__}, want (output, None)")
                if got[1] is not None:
                    second = type(got[1]).__name__
                    raise WrongResult(f"returned (output, {second}), want (output, None)")
                if isinstance(got[0], torch.Tensor) and got[0].dtype != case.dtype:
                    raise Difference(f"the output is {got[0].dtype}, the query {case.dtype}")
                tolerance = TOLERANCE if case.dtype == torch.float32 else BFLOAT16_TOLERANCE
                want = exact_attention(case.sizes, *case[3:])
                compare(got[0].double(), want, "bmhv", tolerance=tolerance)
            except (Difference, KernelFault) as trouble:
                call = shown(function, inputs, {"scaling": round(scale, 3)})
                name = f"{case.name} ({case.sizes})"
                return failed(name, trouble, exercise, case.symptom, call)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


# Logits are of size 1, and float32 on both sides adds in another order.
LOGIT_TOLERANCE = 1e-4


def same_text(*kinds):
    """Puts the function into models of transformers: same tokens as with their own attention."""

    def gather(function, exercise):
        for kind in kinds:
            model, prompts = small_model(kind), sequences(9, 5)
            want, logits = written(model, prompts)
            with attending(model, function):
                got, own_logits = written(model, prompts)
            off = float((own_logits - logits).abs().max())
            if not torch.equal(got, want) or not off <= LOGIT_TOLERANCE:
                first = int((got != want).any(0).nonzero().flatten()[:1].sum())
                details = (f"first other token: number {first}; logits differ by up to {off:.2g}",)
                return Row("model", FAILED, f"{kind} writes other tokens", details)
        return Row("model", PASSED, f"{' and '.join(kinds)} write what they wrote before")

    gather.kind = "model"
    return gather
