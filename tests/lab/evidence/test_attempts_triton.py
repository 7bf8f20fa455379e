"""Attempts at the exercises in Triton, in chunks and in MLA, as edits of the solutions.

Wrong ones that get most cases right are rejected, and the reason says where; right ones of other
shapes are accepted. None of them stands in solutions/wrong.
"""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, edit, instead

pytest.importorskip("triton")


def attempt(id, *edits):
    """The solution with these edits, as if typed into the lesson's cell."""
    source = _edited(exercises.load(id), "attempt", edits)
    return exercises.defined(id, source, f"<attempt at {id} {hash(source)}>")


def said(result):
    rows = [row for row in result.rows if row.verdict == "FAILED"]
    return "\n".join([" ".join((row.kind, row.text, *row.details)) for row in rows])


RECURRENT, CHUNKED = "13_fused_recurrent.kernel", "16_the_chunked_kernel.kernel"
PREFILL, ONLINE = "26_fused_prefill.kernel", "26_fused_prefill.online"
PARTIAL, COMBINE = "27_split_decode.partial", "27_split_decode.combine"
STATE, PRODUCT = "15_chunks_by_hand.with_state", "15_chunks_by_hand.product"
ABSORBED, ATTENTION = "25_absorb_the_weights.absorbed", "28_inside_a_model.attention"
DECAY, KEPT = "14_recurrent_gradients.decay_gradient", "17_chunked_gradients.checkpoints"
TRIANGLE = """
o_c = tl.arange(0, C)
later = tl.where(o_c[None, :] >= o_c[:, None], 1.0, 0.0)
b_dw = b_a[None, :] + tl.dot(later, b_rdr - b_kdk) - b_rdr
"""

WRONG = {
    "divided after the last product": (
        PREFILL,
        [edit("b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)",
              "b_o = tl.dot(b_acc.to(b_w.dtype), b_w) / b_sum[:, None]")],
        "many equal tokens latents add up to more than float16's 65,504",
    ),
    "a while loop that never moves on": (
        RECURRENT,
        [edit("for t in range(T):", "t = 0\nwhile t < T:")],
        "still looping after 1,000 rounds line",
    ),
    "float64": (
        RECURRENT,
        [edit("b_kv = b_k[:, None]", "b_kv = b_k.to(tl.float64)[:, None]")],
        "float64 line b_kv = b_k.to(tl.float64)",
    ),
    "masked lanes of u are anything": (
        RECURRENT,
        [edit("tl.load(u + i_h * K + o_k, m_k, 0)", "tl.load(u + i_h * K + o_k, m_k)")],
        "NaN was computed a load with a mask line b_u = tl.load the third argument",
    ),
    "the last token is not stored": (
        RECURRENT,
        [edit("b_o, m_v)", "b_o, m_v & (t < T - 1))")],
        "o_parts: [n=0, b=0, t=0, h=0, j=0] is never written",
    ),
    "batch rows write to one place": (
        RECURRENT,
        [edit("(i_k * B * T * H + i_t)", "(i_k * B * T * H + t * H + i_h)")],
        "element of o_parts: touched by program",
    ),
    "the state is stored at every token": (
        RECURRENT,
        [edit("    tl.store(s1 + o_s, b_s, m_s)", "        tl.store(s1 + o_s, b_s, m_s)")],
        "traffic written s1 8× want at most 1 s1 is written 7× too often in line tl.store(s1",
    ),
    "r is loaded twice": (
        RECURRENT,
        [edit("tl.sum(b_r[:, None] *", "tl.sum(tl.load(r + i_t * K + o_k, m_k, 0)[:, None] *")],
        "traffic r is read 3× too often 3× in line tl.load(r",
    ),
    "exps of the whole tile": (
        RECURRENT,
        [edit("tl.exp(b_w)[:, None] * b_s", "tl.exp(b_w[:, None] + 0 * b_s) * b_s")],
        "traffic exps, want at most in line",
    ),
    "two parameters too few": (
        RECURRENT,
        [edit("s0, o_parts, s1", "s0, o_parts"), edit("    tl.store(s1 + o_s, b_s, m_s)")],
        "it takes 14 arguments called with 15 o_parts, s1",
    ),
    "TF32 by default": (
        DECAY,
        [
            edit(
                "b_dw = b_a[None, :] + tl.cumsum(b_rdr - b_kdk, 0, reverse=True) - b_rdr", TRIANGLE
            )
        ],
        "tl.dot rounds float32 11 bits (TF32) line input_precision",
    ),
    "only 32 channels": (
        KEPT,
        [edit("tl.store(before + i_s * N * N + o_s, b_s)", "tl.store(before + i_s * N * N + o_s, "
              "tl.where(o_n[:, None] < 32, b_s, 0))")],
        "own blocks before: first difference i=32",
    ),
    "the state in 16 bits": (
        CHUNKED,
        [edit("b_s *= tl.exp(b_last)[:, None]",
              "b_s = (b_s * tl.exp(b_last)[:, None]).to(b_v.dtype).to(tl.float32)")],
        "a large state in bfloat16 s1: first difference",
    ),
    "sums of decays in 16 bits": (
        CHUNKED,
        [edit("b_after = tl.cumsum(b_w, 0)",
              "b_after = tl.cumsum(b_w, 0).to(b_v.dtype).to(tl.float32)")],
        "bfloat16 first difference float32 tiles",
    ),
    "states in 16 bits from chunk to chunk": (
        KEPT,
        [edit("b_s *= tl.exp(b_last)[:, None]",
              "b_s = (b_s * tl.exp(b_last)[:, None]).to(b_v.dtype).to(tl.float32)")],
        "a large state in bfloat16 before: first difference",
    ),
    "the state's gradient in 16 bits": (
        "17_chunked_gradients.backward_sweep",
        [edit("b_g *= tl.exp(b_last)[:, None]",
              "b_g = (b_g * tl.exp(b_last)[:, None]).to(b_v.dtype).to(tl.float32)")],
        "a large state in bfloat16 ds0: first difference",
    ),
    "the accumulator in 16 bits": (
        PREFILL,
        [edit("b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)",
              "b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)\n"
              "b_acc = b_acc.to(b_latent.dtype).to(tl.float32)")],
        "many quiet tokens Keep sums in float32",
    ),
    "the inverse row by row": (
        "24_chunked_rwkv7.by_blocks",
        [instead("""
            x = torch.eye(A.shape[-1]).expand_as(A).clone()
            for i in range(1, A.shape[-1]):
                x[..., i, :] += (A[..., i : i + 1, :] @ x)[..., 0, :]
            return x
         """)],
        "the largest product is of blocks of 1, want 32",
    ),
    "the library's own function": (
        "22_delta_rule.loop",
        [instead("""
            from rwkv_lessons.wkv7.reference import wkv7_reference

            tokens = (x[None, :, None] for x in (r, w, k, v, a, b))
            o, s = wkv7_reference(*tokens, s[None, None])
            return o[0, :, 0], s[0, 0]
         """)],
        "it calls wkv7_reference which is this library's own answer",
    ),
    "r faded in place": (
        STATE,
        [edit("(r * before.exp()) @ s", "r.mul_(before.exp()) @ s")],
        "with_state(r=[1, 2, 4], changed its input r copy",
    ),
    "a loop over heads": (
        PRODUCT,
        [edit("(left @ right.mT)", "torch.stack([x @ y.mT for x, y in zip(left, right)])")],
        "a loop over heads calls of torch",
    ),
    "the recurrence, token by token": (
        STATE,
        [instead("""
            o, old = [], s
            for t in range(r.shape[-2]):
                o.append(r[..., t : t + 1, :] @ old)
                kv = k[..., t : t + 1, :].mT @ v[..., t : t + 1, :]
                decay = w[..., t : t + 1, :].exp().mT
                old, s = decay * old, decay * s + kv
            return torch.cat(o, -2), s
         """)],
        "a loop over tokens calls of torch",
    ),
    "sums over channels without @": (
        PRODUCT,
        [edit("(left @ right.mT)", "(left[..., :, None, :] * right[..., None, :, :]).sum(-1)")],
        "sums without @ makes [3, 8, 8, 4]",
    ),
    "absorbed in float64": (
        ABSORBED,
        [edit("p = (s * scale).softmax(-1)", "p = (s.double() * scale).softmax(-1).float()")],
        "absorbed(q=[1, 1, 4] computes in float64",
    ),
    "one head after another": (
        ABSORBED,
        [instead("""
            o = []
            for h in range(q.shape[1]):
                s = (q[:, h : h + 1] @ w_k[h]) @ latent.mT + q_rope[:, h : h + 1] @ k_rope.mT
                o.append((s * scale).softmax(-1) @ latent @ w_v[h].T)
            return torch.cat(o, 1)
         """)],
        "a loop over heads tensors made for 2 heads",
    ),
    "the largest of the whole row first": (
        ONLINE,
        [edit("m = torch.full((rows,), -torch.inf, dtype=s.dtype)", "m = s.max(1).values")],
        "not read block by block reads columns 0 to 99 at once a block has 8",
    ),
    "a while loop that never ends": (
        ONLINE,
        [edit("for n in range(0, N, BN):", "n = 0\nwhile n < N:")],
        "online(s=[2, 4], latent=[4, 8], BN=8) still looping after line",
    ),
    "the mask after the maximum": (
        PREFILL,
        [
            edit('b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))',
                 "b_s *= scale"),
            edit("b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)",
                 "shrink = tl.exp(b_max - larger)\n"
                 "b_p = tl.where(o_n[None, :] <= own[:, None], tl.exp(b_s - larger[:, None]), 0)"),
        ],
        "scores around -150 NaN was computed start the maximum at",
    ),
    "hidden tokens in the maximum, tails left out": (
        PREFILL,
        [
            edit('b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))',
                 'b_s = tl.where(o_n[None, :] < N, b_s * scale, -float("inf"))'),
            edit("b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)",
                 "shrink = tl.exp(b_max - larger)\n"
                 "b_p = tl.where(o_n[None, :] <= own[:, None], tl.exp(b_s - larger[:, None]), 0)"),
        ],
        "later tokens far louder NaN was computed Mask first",
    ),
    "the sum in 16 bits": (
        PREFILL,
        [edit("b_sum = shrink * b_sum + tl.sum(b_p, 1)",
              "b_sum = (shrink * b_sum + tl.sum(b_p, 1)).to(b_latent.dtype).to(tl.float32)")],
        "many quiet tokens Keep sums in float32",
    ),
    "the maximum starts at -30": (
        PARTIAL,
        [edit('tl.full([BH], -float("inf"), tl.float32)', "tl.full([BH], -30.0, tl.float32)"),
         edit("tl.exp(b_max - larger)", "tl.where(n > start, tl.exp(b_max - larger), 0)")],
        "scores around -150",
    ),
    "a float for a number of tokens": (
        "27_split_decode.tokens_per_split",
        [edit("ceil_div(ceil_div(N, splits), BN) * BN", "ceil_div(N / splits, BN) * BN")],
        "tokens_per_split(B=1, tiles=1, N=1024, BN=64, places=4) returned 256.0, a float",
    ),
    "values for every head and token": (
        ATTENTION,
        [edit("(p.flatten(1, 2) @ latent).unflatten(1, (H, M)) @ w_v.mT",
              "p @ (latent[:, None] @ w_v.mT)")],
        "largest tensor made: 51,200 numbers Do not compute keys or values",
    ),
    "always float32": (
        ATTENTION,
        [edit("o.transpose(1, 2), None", "o.transpose(1, 2).float(), None")],
        "bfloat16 the output is torch.float32 query.dtype",
    ),
    "the mask is scaled with the scores": (
        ATTENTION,
        [edit("* scaling + attention_mask", "* scaling + scaling * attention_mask")],
        "a mask of other numbers",
    ),
    "scores added up in float16": (
        PREFILL,
        [edit("tl.dot(b_q, tl.trans(b_latent))",
              "tl.dot(b_q, tl.trans(b_latent), out_dtype=tl.float16)")],
        "a tl.dot sums in float16",
    ),
    "one product of float32 operands": (
        CHUNKED,
        [edit("b_o += tl.dot(b_scores.to(b_v.dtype), b_v,",
              "b_o += tl.dot(b_scores, b_v.to(tl.float32),")],
        "bfloat16 a tl.dot multiplies fp32, want bf16, the type of v",
    ),
    "numbers of elements in 16 bits": (
        "12_first_tiles.add",
        [edit("o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
              "o = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int16)")],
        "70,000 elements",
    ),
    "a product of sizes in 32 bits": (
        "01_five_loops.flops",
        [edit("return 7 * B * T * H * N * N",
              "return int(np.prod([7, B, T, H, N, N], dtype=np.int32))")],
        "the recorded shape",
    ),
    "a division in float32": (
        "06_block_size.blocks",
        [edit("return (B * H * N + block - 1) // block",
              "import numpy as np\nn = np.float32(B * H * N)\nreturn int(np.ceil(n / block))")],
        "more outputs than float32 can count",
    ),
    "scores scaled in place": (
        ATTENTION,
        [edit("q, q_rope = query.split", "q, q_rope = query.mul_(scaling).split"),
         edit("(H, M)) * scaling", "(H, M))")],
        "changed its input query",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_looks_right_and_is_not_is_rejected_for_its_reason(name):
    id, edits, words = WRONG[name]
    result = evaluate(id, attempt(id, *edits))
    assert not result.passed, str(result)
    text = said(result)
    assert all(word in text for word in words.split()), text
    assert len({row.details for row in result.rows if row.verdict == "FAILED"}) == 1  # told once


NEXT = """
n_t = tl.minimum(t + 1, T - 1)
i_n = (i_b * T + n_t) * H + i_h
b_r, b_k, b_w, b_v = n_r, n_k, n_w, n_v
n_r = tl.load(r + i_n * K + o_k, m_k, 0).to(tl.float32)
n_k = tl.load(k + i_n * K + o_k, m_k, 0).to(tl.float32)
n_w = tl.load(w + i_n * K + o_k, m_k, 0).to(tl.float32)
n_v = tl.load(v + i_n * V + o_v, m_v, 0).to(tl.float32)
"""
RIGHT = {
    "the next token is fetched while this one is used": (
        RECURRENT,
        edit(
            "for t in range(T):",
            """
            i_n = i_b * T * H + i_h
            n_r = tl.load(r + i_n * K + o_k, m_k, 0).to(tl.float32)
            n_k = tl.load(k + i_n * K + o_k, m_k, 0).to(tl.float32)
            n_w = tl.load(w + i_n * K + o_k, m_k, 0).to(tl.float32)
            n_v = tl.load(v + i_n * V + o_v, m_v, 0).to(tl.float32)
            for t in range(T):
            """,
        ),
        edit(
            """
            b_r = tl.load(r + i_t * K + o_k, m_k, 0).to(tl.float32)
            b_k = tl.load(k + i_t * K + o_k, m_k, 0).to(tl.float32)
            b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)
            b_v = tl.load(v + i_t * V + o_v, m_v, 0).to(tl.float32)
            """,
            NEXT,
        ),
    ),
    "names of one's own, and masked lanes that nobody looks at": (
        RECURRENT,
        edit("r, k, v, w, u, s0, o_parts, s1,", "reader, k, v, log_decay, u, s0, out, s1,"),
        edit("tl.load(r +", "tl.load(reader +"),
        edit("tl.load(w +", "tl.load(log_decay +"),
        edit("tl.store(o_parts +", "tl.store(out +"),
        edit("tl.load(v + i_t * V + o_v, m_v, 0)", "tl.load(v + i_t * V + o_v, m_v)"),
    ),
    "powers of two": (
        "14_recurrent_gradients.forward_sweep",
        edit("tl.exp(b_w)", "tl.exp2(b_w * 1.4426950408889634)"),
        edit("for t in range(T):", "for t in tl.range(0, T):"),
    ),
    "real float32 everywhere, and scores on both sides of the diagonal at once": (
        CHUNKED,
        edit("tl.dot(b_left, tl.trans(b_right), input_precision=PRECISION)",
             'tl.dot(b_left, tl.trans(b_right), input_precision="ieee")'),
        edit("b_o += tl.dot(b_scores.to(b_v.dtype), b_v, input_precision=PRECISION)",
             "b_o = tl.dot(b_scores.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)"),
    ),
    "einsum throughout": (
        STATE,
        edit("(r * before.exp()) @ s", 'torch.einsum("...ti,...ij->...tj", r * before.exp(), s)'),
    ),
    "the latent by einsum, without gradients": (
        ABSORBED,
        edit("def absorbed(", "@torch.inference_mode()\ndef absorbed("),
        edit("s = q_latent @ latent.mT + q_rope @ k_rope.mT",
             's = torch.einsum("bhr,bnr->bhn", q_latent, latent) + q_rope @ k_rope.mT'),
    ),
    "a while loop over blocks": (
        ONLINE,
        edit("for n in range(0, N, BN):", "n = 0\nwhile n < N:"),
        edit("m = larger", "m = larger\nn += BN"),
    ),
    "the largest of all parts first": (
        COMBINE,
        edit("for s in range(S):", """
             for s in range(S):
                 b_max = tl.maximum(b_max, tl.load(part_lse + (o_b * S + s) * H + i_h, m_b, 0))
             for s in range(S):
             """),
        edit("larger = tl.maximum(b_max, b_lse)", "larger = b_max"),
    ),
    "values as rows of the last product": (
        COMBINE,
        edit("b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)",
             "b_a = (b_acc / b_sum[:, None]).to(b_w.dtype)\n"
             "b_o = tl.trans(tl.dot(tl.trans(b_w), tl.trans(b_a)))"),
    ),
    "scores by einsum": (
        ATTENTION,
        edit("q_latent = (q @ w_k).flatten(1, 2)", "q_latent = q @ w_k"),
        edit("s = q_latent @ latent.mT + q_rope.flatten(1, 2) @ k_rope.mT",
             's = torch.einsum("bhmr,bnr->bhmn", q_latent, latent)\n'
             's = s + torch.einsum("bhmp,bnp->bhmn", q_rope, k_rope)'),
        edit("s.unflatten(1, (H, M)) * scaling", "s * scaling"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_in_another_shape_is_accepted(name):
    id, *edits = RIGHT[name]
    result = evaluate(id, attempt(id, *edits))
    assert result.passed, str(result)


def test_a_right_kernel_for_float32_alone_says_so():
    """bfloat16 is asked for, too; where it does not compile, nobody gets a wrong answer."""
    name = "14_recurrent_gradients.forward_sweep"
    float32 = edit(
        "b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)",
        "b_w = tl.load(w + i_t * K + o_k, m_k, 0)",
    )
    answer = evaluate(name, attempt(name, float32)).rows[0]
    assert answer.verdict == "passed"
    assert answer.details[0].startswith("It does not compile for bfloat16")
    assert "tl.exp(b_w)" in answer.details[-1]


def test_a_kernel_that_refuses_float32_is_wrong():
    float16 = edit("tl.exp(b_w)", "tl.exp(b_w.to(tl.float16))")
    assert "Expected dtype" in said(evaluate(RECURRENT, attempt(RECURRENT, float16)))


def test_a_forgotten_decorator_is_named():
    kernel = exercises.load(RECURRENT).reference.fn
    assert "@triton.jit is missing" in said(evaluate(RECURRENT, kernel))
