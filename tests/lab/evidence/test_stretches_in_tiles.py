"""The stretches of lessons 15 to 30 that have the exercise's interface pass its check, as edits.

The others cannot be put to it. Some are questions (15 product and pairs, 18 to 21, 23, 25, 28's
tokens_that_fit, 29, 30's compose to exit_gradients), some give or get other arrays (15 with_state,
17's checkpoints and sweep, 23 in bfloat16, 25 absorbed, 27), and 28's calls the library, which is
no answer. The last step of 21 is in test_right_kernels, 22's in test_stretches. The library's
kernels have more parameters than the lessons', for their segments, strides and options; 21's is
watched through its own launch, in test_evidence_gluon.
"""

import types

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, edit, instead


def split_in_two(kernel):
    """Lesson 26's: blocks of tokens that all queries see, and then those that want the mask."""
    head, _, rest = kernel.partition("    for n in range(0, tl.minimum(")
    bounds, _, rest = rest.partition("):\n")
    body, end, tail = rest.partition("    o_v = ")
    mask = 'b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))'
    assert mask in body
    return f"""{head}    below = (N - M + i_m * BM) // BN * BN
    for n in range(0, below, BN):
{body.replace(mask, "b_s *= scale")}
    for n in range(below, tl.minimum({bounds.replace(", BN", "")}, BN):
{body}{end}{tail}"""


STRETCHES = {
    "15_chunks_by_hand.blocks": [
        instead("""
            C = r.shape[-2]
            if C <= L:
                return product(r, k, w, C // 2)
            before, after = sums(w)
            scores, m = r.new_zeros(*r.shape[:-1], C), C // L // 2 * L
            early, late, start = slice(0, m), slice(m, C), before[..., m : m + 1, :]
            left = r[..., late, :] * (before[..., late, :] - start).exp()
            right = k[..., early, :] * (start - after[..., early, :]).exp()
            scores[..., late, early] = left @ right.mT
            for half in (early, late):
                own = (x[..., half, :] for x in (r, k, w))
                scores[..., half, half] = blocks(*own, L)
            return scores
        """)
    ],
    "16_the_chunked_kernel.kernel": [
        edit(
            "b_left = (b_r * tl.exp(b_before - b_middle)).to(b_v.dtype)",
            """
            second = o_c >= BT // 2
            b_first = tl.sum(tl.where((o_c < BT // 4)[:, None], b_w, 0), 0)
            b_third = tl.sum(tl.where((o_c < BT // 2 + BT // 4)[:, None], b_w, 0), 0)
            b_quarter = tl.where(second[:, None], b_third[None, :], b_first[None, :])
            b_left = (b_r * tl.exp(tl.minimum(b_before - b_middle, 0))).to(b_v.dtype)
            b_left_own = (b_r * tl.exp(b_before - b_quarter)).to(b_v.dtype)
            b_right_own = (b_k * tl.exp(b_quarter - b_after)).to(b_v.dtype)
            b_own = tl.dot(b_left_own, tl.trans(b_right_own), input_precision=PRECISION)
            """,
        ),
        edit("tl.exp(b_middle - b_after)", "tl.exp(tl.minimum(b_middle - b_after, 0))"),
        edit(
            "b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)",
            """
            b_scores = tl.where(second[:, None] & ~second[None, :], b_scores, b_own)
            b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)
            """,
        ),
    ],
    "17_chunked_gradients.decay_gradient": [
        instead("""
            taken_out = r * (dr_s + dr_c)
            later = (taken_out - k * dk_c).flip(0).cumsum(0).flip(0) - taken_out
            return across + (k * dk_s).cumsum(0) - k * dk_s + later
        """)
    ],
    "26_fused_prefill.online": [
        edit("larger = torch.maximum(m, block.max(1).values)",
             "top = block.max(1).values\nlarger = torch.where(top > m + 8, top, m)"),
    ],
    "26_fused_prefill.kernel": [
        edit("i_m, i_bh = tl.program_id(0)",
             "i_m, i_bh = tl.num_programs(0) - 1 - tl.program_id(0)"),
        types.SimpleNamespace(apply=split_in_two),
    ],
    "30_many_gpus.summary": [
        instead("""
            later = w.flip(0).cumsum(0).flip(0)
            after = torch.cat([later[1:], torch.zeros_like(later[:1])])
            return later[0].exp(), (k * after.exp()).T @ v
        """)
    ],
}  # fmt: skip


@pytest.mark.parametrize("id", STRETCHES)
def test_a_stretch_passes_its_own_check(id):
    if id.startswith(("16", "17", "26")):
        pytest.importorskip("triton")
    source = _edited(exercises.load(id), "attempt", STRETCHES[id])
    result = evaluate(id, exercises.defined(id, source, f"<stretch of {id}>"))
    assert result.passed, str(result)
