"""Whole kernels as learners may write them: their own names, loops and order, no line of ours.

A lesson gives the signature only, so its check has to know a right kernel by what it does.
"""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, instead

pytest.importorskip("triton")

POINTERS_MOVE_ON = """
# pointers walk from token to token, the bonus is a sum of its own
nv, nk = tl.program_id(0), tl.program_id(1)
row, head = tl.program_id(2) // H, tl.program_id(2) % H
keys, values = tl.arange(0, BK) + nk * BK, tl.arange(0, BV) + nv * BV
first = row * T * H + head
at_r, at_k, at_w = r + first * K + keys, k + first * K + keys, w + first * K + keys
at_v, at_o = v + first * V + values, o_parts + nk * B * T * H * V + first * V + values
cell = (tl.program_id(2) * K + keys[None, :]) * V + values[:, None]  # [BV, BK]
here = (keys < K)[None, :] & (values < V)[:, None]
state = tl.load(s0 + cell, mask=here, other=0.0)
bonus = tl.load(u + head * K + keys, mask=keys < K, other=0.0)
left = T
while left > 0:
    q = tl.load(at_r, mask=keys < K, other=0.0).to(tl.float32)
    key = tl.load(at_k, mask=keys < K, other=0.0).to(tl.float32)
    value = tl.load(at_v, mask=values < V, other=0.0).to(tl.float32)
    out = tl.sum(state * q[None, :], 1) + value * tl.sum(q * bonus * key, 0)
    tl.store(at_o, out, mask=values < V)
    decay = tl.exp(tl.load(at_w, mask=keys < K, other=0.0).to(tl.float32))
    state = state * decay[None, :] + key[None, :] * value[:, None]
    at_r += H * K
    at_k += H * K
    at_w += H * K
    at_v += H * V
    at_o += H * V
    left -= 1
tl.store(s1 + cell, state, mask=here)
"""
SCORES_TRANSPOSED = """
i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
n, c = tl.arange(0, N), tl.arange(0, BT)
o_s = tl.program_id(0) * N * N + n[None, :] * N + n[:, None]   # values x keys
b_s = tl.load(s0 + o_s)
b_u = tl.load(u + i_h * N + n)
base = (i_b * T * H + i_h) * N
t = 0
while t < T:
    o_t = t + c
    m = (o_t < T)[:, None]
    o_x = base + o_t[:, None] * (H * N) + n[None, :]
    b_r = tl.load(r + o_x, m, 0).to(tl.float32)
    b_k = tl.load(k + o_x, m, 0).to(tl.float32)
    b_w = tl.load(w + o_x, m, 0).to(tl.float32)
    b_v = tl.load(v + o_x, m, 0)
    a = tl.cumsum(b_w, 0)
    last = tl.sum(b_w, 0)
    half = tl.sum(tl.where((c < BT // 2)[:, None], b_w, 0), 0)[None, :]
    x = (b_r * tl.exp(a - b_w - half)).to(b_v.dtype)
    y = (b_k * tl.exp(half - a)).to(b_v.dtype)
    scores_t = tl.dot(y, tl.trans(x), input_precision=PRECISION)  # s x t
    scores_t = tl.where(c[:, None] < c[None, :], scores_t, 0)
    scores_t += tl.where(c[:, None] == c[None, :], tl.sum(b_r * b_u[None, :] * b_k, 1)[None, :], 0)
    b_o = tl.dot(tl.trans(scores_t).to(b_v.dtype), b_v, input_precision=PRECISION)
    reads = (b_r * tl.exp(a - b_w)).to(b_v.dtype)
    b_o += tl.dot(reads, tl.trans(b_s).to(b_v.dtype), input_precision=PRECISION)
    tl.store(o + o_x, b_o.to(o.dtype.element_ty), m)
    adds = (b_k * tl.exp(last[None, :] - a)).to(b_v.dtype)
    b_s = b_s * tl.exp(last)[None, :] + tl.dot(tl.trans(b_v), adds, input_precision=PRECISION)
    t += BT
tl.store(s1 + o_s, b_s)
"""
POINTERS_WALK = """
pid = tl.program_id(0)
i_b, i_h = pid // H, pid % H
n, c = tl.arange(0, N), tl.arange(0, BT)
tile = n[:, None] * N + n[None, :]
state = tl.load(s0 + pid * N * N + tile)
out = before + (i_b * tl.cdiv(T, BT) * H + i_h) * N * N + tile
at = (i_b * T * H + i_h) * N + c[:, None] * H * N + n[None, :]
for t in range(0, T, BT):
    tl.store(out, state)
    out += H * N * N
    m = (t + c < T)[:, None]
    b_w = tl.load(w + at, m, 0.0).to(tl.float32)
    b_k = tl.load(k + at, m, 0.0).to(tl.float32)
    b_v = tl.load(v + at, m, 0.0)
    at += BT * H * N
    later = tl.cumsum(b_w, 0, reverse=True) - b_w
    state = state * tl.exp(tl.sum(b_w, 0))[:, None]
    added = tl.trans(b_k * tl.exp(later)).to(b_v.dtype)
    state = tl.dot(added, b_v, acc=state, input_precision=PRECISION)
"""
EVERY_BLOCK_ASKED = """
block, bh = tl.program_id(0), tl.program_id(1)
b = bh // H
h = bh % H
q = block * BM + tl.arange(0, BM)
live = q < M
place = ((b * M + q) * H + h)[:, None]
r_ = tl.arange(0, R)[None, :]
p_ = tl.arange(0, P)[None, :]
v_ = tl.arange(0, V)
ql = tl.load(q_latent + place * R + r_, mask=live[:, None], other=0.0)
qr = tl.load(q_rope + place * P + p_, mask=live[:, None], other=0.0)
position = q + (N - M)
log2e = 1.4426950408889634
top = tl.zeros([BM], tl.float32) - float("inf")
bottom = tl.zeros([BM], tl.float32)
total = tl.zeros([BM, R], tl.float32)
for start in range(0, N, BN):
    if start <= N - M + block * BM + BM - 1:
        n = start + tl.arange(0, BN)
        lat = tl.load(latent + (b * N + n)[:, None] * R + r_, mask=(n < N)[:, None], other=0.0)
        rope = tl.load(k_rope + (b * N + n)[:, None] * P + p_, mask=(n < N)[:, None], other=0.0)
        score = tl.dot(qr, tl.trans(rope))
        score = tl.dot(ql, tl.trans(lat), score) * (scale * log2e)
        seen = (n[None, :] <= position[:, None]) & (n < N)[None, :]
        score = tl.where(seen, score, -float("inf"))
        new = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new[:, None])
        old = tl.exp2(top - new)
        bottom = bottom * old + tl.sum(weight, 1)
        total = tl.dot(weight.to(lat.dtype), lat, total * old[:, None])
        top = new
wv = tl.load(w_v + h * V * R + v_[:, None] * R + r_)
result = tl.dot((total / bottom[:, None]).to(wv.dtype), tl.trans(wv))
tl.store(o + place * V + v_[None, :], result.to(o.dtype.element_ty), mask=live[:, None])
"""
AVERAGE = """
h = tl.program_id(0)
b = tl.program_id(1) * BB + tl.arange(0, BB)
live = b < B
r_, v_ = tl.arange(0, R), tl.arange(0, V)
lse = tl.load(part_lse + b * S * H + h, live, 0.0)
mean = tl.load(parts + (b * S * H + h)[:, None] * R + r_[None, :], live[:, None], 0.0)
for s in range(1, S):
    at = (b * S + s) * H + h
    other = tl.load(part_lse + at, live, 0.0)
    new = tl.load(parts + at[:, None] * R + r_[None, :], live[:, None], 0.0)
    share = tl.sigmoid(other - lse)
    mean += share[:, None] * (new - mean)
    top = tl.maximum(lse, other)
    lse = top + tl.log(tl.exp(lse - top) + tl.exp(other - top))
wv = tl.load(w_v + (h * V + v_[:, None]) * R + r_[None, :])
out = tl.dot(mean.to(wv.dtype), tl.trans(wv))
tl.store(o + (b * H + h)[:, None] * V + v_[None, :], out.to(wv.dtype), mask=live[:, None])
"""
RIGHT = {
    "pointers move on, the bonus is a sum of its own": (
        "13_fused_recurrent.kernel", POINTERS_MOVE_ON),
    "scores and state the other way round": ("16_the_chunked_kernel.kernel", SCORES_TRANSPOSED),
    "what comes later, by a reverse sum": ("17_chunked_gradients.checkpoints", POINTERS_WALK),
    "exp2, and a loop that skips": ("26_fused_prefill.kernel", EVERY_BLOCK_ASKED),
    "an average instead of a sum": ("27_split_decode.combine", AVERAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_of_another_shape_is_accepted(name):
    id, body = RIGHT[name]
    source = _edited(exercises.load(id), "whole", [instead(body)])
    result = evaluate(id, exercises.defined(id, source, f"<{name}>"))
    assert result.passed, str(result)
