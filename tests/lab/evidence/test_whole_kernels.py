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
    q = tl.load(at_r, mask=keys < K, other=0.0)
    key = tl.load(at_k, mask=keys < K, other=0.0)
    value = tl.load(at_v, mask=values < V, other=0.0)
    out = tl.sum(state * q[None, :], 1) + value * tl.sum(q * bonus * key, 0)
    tl.store(at_o, out, mask=values < V)
    decay = tl.exp(tl.load(at_w, mask=keys < K, other=0.0))
    state = state * decay[None, :] + key[None, :] * value[:, None]
    at_r += H * K
    at_k += H * K
    at_w += H * K
    at_v += H * V
    at_o += H * V
    left -= 1
tl.store(s1 + cell, state, mask=here)
"""
BLOCK_POINTERS = """
i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
b, h = i_bh // H, i_bh % H
tile = tl.make_block_ptr(
    s0 + i_bh * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
)
state = tl.load(tile, boundary_check=(0, 1), padding_option="zero")
bonus = tl.make_block_ptr(u, (H, K), (K, 1), (h, i_k * BK), (1, BK), (1, 0))
bonus = tl.load(bonus, boundary_check=(0, 1), padding_option="zero")  # [1, BK]
for t in range(T):
    start = (b * T + t) * H + h
    along_k = tl.arange(0, BK) + i_k * BK
    along_v = tl.arange(0, BV) + i_v * BV
    b_r = tl.load(r + start * K + along_k, along_k < K, 0)
    b_k = tl.load(k + start * K + along_k, along_k < K, 0)
    b_w = tl.load(w + start * K + along_k, along_k < K, 0)
    b_v = tl.load(v + start * V + along_v, along_v < V, 0)
    b_o = tl.sum(state * b_r[:, None], 0) + tl.sum(b_r * b_k * tl.sum(bonus, 0)) * b_v
    state = tl.exp(b_w)[:, None] * state + b_k[:, None] * b_v
    tl.store(o_parts + ((i_k * B * T * H) + start) * V + along_v, b_o, along_v < V)
tile = tl.make_block_ptr(
    s1 + i_bh * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
)
tl.store(tile, state, boundary_check=(0, 1))
"""
RIGHT = {
    "13: pointers move on": ("13_fused_recurrent.kernel", POINTERS_MOVE_ON),
    "13: block pointers": ("13_fused_recurrent.kernel", BLOCK_POINTERS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_of_another_shape_is_accepted(name):
    id, body = RIGHT[name]
    source = _edited(exercises.load(id), "whole", [instead(body)])
    result = evaluate(id, exercises.defined(id, source, f"<{name}>"))
    assert result.passed, str(result)
