"""Functions that launch: any grid and blocks that do the work are right; a wrong one is named."""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, edit, instead

pytest.importorskip("triton")

FORWARD, PREFILL = "13_fused_recurrent.forward", "26_fused_prefill.prefill"
CHUNKED, THROUGH = "16_the_chunked_kernel.forward", "14_recurrent_gradients.through_states"
GRADIENTS, DECODE = "17_chunked_gradients.gradients", "27_split_decode.decode"
OWN = """
batch, tokens, heads, keys = r.shape
values = v.size(3)
shares = torch.empty(triton.cdiv(keys, 16), *v.shape, device=v.device)
after = torch.zeros_like(s0)
def programs(sizes):
    return triton.cdiv(values, sizes["BV"]), triton.cdiv(keys, sizes["BK"]), batch * heads
kernel[programs](
    r, k, v, w, u, s0, shares, after, batch, tokens, heads, keys, values, BK=16, BV=64, num_warps=2
)
total = shares[0].clone()
for share in shares[1:]:
    total += share
return [total.to(v.dtype), after]
"""
RIGHT = {
    "tiles of one's own, a grid that is a function, sizes by position": (FORWARD, instead(OWN)),
    "both outputs in one allocation": (
        FORWARD,
        edit("s1 = torch.empty_like(s0)",
             "memory = s0.new_empty(2, *s0.shape)\ns1 = memory[1]"),
    ),
    "longer chunks, sizes by position, real float32": (
        CHUNKED,
        edit('**sizes, num_warps=4)', 'T, H, N, 32, "ieee", num_warps=8)'),
    ),
    "a grid that is a function": (CHUNKED, edit("kernel[(B * H,)]", "kernel[lambda _: (H * B,)]")),
    "o from its shape": (
        CHUNKED, edit("torch.empty_like(v)", "torch.zeros(B, T, H, N, dtype=v.dtype).to(v.device)")
    ),
    "shares of each gradient by themselves": (
        THROUGH,
        edit("dr_parts, dk_parts = s0.new_empty(2, NV, *r.shape)",
             "dr_parts = torch.empty(NV, B, T, H, K, device=r.device)\n"
             "dk_parts = torch.empty_like(dr_parts)"),
    ),
    "a state more than there are chunks": (
        GRADIENTS,
        edit('ceil_div(T, constants["BT"])', 'T // constants["BT"] + 1'),
    ),
    "ds0 in the memory of du's allocation": (
        GRADIENTS,
        edit("torch.empty_like(s0)", "s0.new_zeros(B, H, N, N)"),
        edit("du.sum(0)", "torch.einsum('bhn->hn', du)"),
    ),
    "blocks of 32 queries": (
        PREFILL,
        edit("ceil_div(M, 64)", "ceil_div(M, 32)"),
        edit('"BM": 64', '"BM": 32'),
    ),
    "tiles of 16 heads and of 32 batch rows": (
        DECODE,
        edit("ceil_div(H, 64)", "ceil_div(H, 16)"),
        edit("BH=64", "BH=16"),
        edit("ceil_div(B, 16)", "ceil_div(B, 32)"),
        edit("BB=16", "BB=32"),
    ),
}  # fmt: skip
WRONG = {
    "nothing is launched": (
        FORWARD, [edit("kernel[programs](r, k, v, w, u, s0, o_parts, s1, **constants)")],
        "launches of kernel: 0, want 1",
    ),
    "what the kernel wrote is not looked at": (
        FORWARD, [edit("return o_parts.sum(0), s1", """
s, o = s0.clone(), torch.empty_like(v)
for t in range(T):
    kv = k[:, t, :, :, None].float() * v[:, t, :, None, :].float()
    o[:, t] = (r[:, t, :, :, None].float() * (u[:, :, None] * kv + s)).sum(2)
    s = w[:, t, :, :, None].float().exp() * s + kv
return o, s""")],
        "o is computed without the launch",
    ),
    "no grid": (FORWARD, [edit("kernel[programs](", "kernel(")], "a launch needs a grid: kernel["),
    "a size is left out": (
        FORWARD, [edit("**constants", "**{x: n for x, n in constants.items() if x != 'T'}")],
        "launched without T",
    ),
    "a size too many": (FORWARD, [edit("**constants", "**constants, C=64")], "no parameter C"),
    "a tile that is no power of two": (
        PREFILL, [edit('"BN": 64', '"BN": 48')], "power of 2",
    ),
    "blocks that do not fit": (
        PREFILL,
        [edit('"BM": 64, "BN": 64', '"BM": 128, "BN": 256'),
         edit("ceil_div(M, 64)", "ceil_div(M, 128)")],
        "machine code",
    ),
    "one output": (
        FORWARD, [edit("o_parts.sum(0), s1", "o_parts.sum(0)")], "returns 1 things, want 2",
    ),
    "o and s1 swapped": (
        FORWARD, [edit("o_parts.sum(0), s1", "s1, o_parts.sum(0)")], "o: shape",
    ),
    "it waits for something that never comes": (
        FORWARD, [edit("V = v.shape[-1]", "V = v.shape[-1]\nwhile V:\n    V += 1")],
        "still looping after 100,000 lines",
    ),
    "states kept in 16 bits": (
        GRADIENTS, [edit("before = s0.new_empty(", "before = v.new_empty(")],
        "before of checkpoints is torch.bfloat16, want torch.float32 hint: The kernel's docstring",
    ),
    "splits of another length than the caller's": (
        DECODE, [edit("N, split, scale", "N, ceil_div(N, splits), scale")],
        "partial gets SPLIT = 5, want 64",
    ),
    "r is scaled in place": (
        FORWARD, [edit("V = v.shape[-1]", "V = v.shape[-1]\nr.mul_(2)\nr = r / 2")],
        "the function changed its input r",
    ),
}  # fmt: skip


def attempt(id, name, edits):
    source = _edited(exercises.load(id), "attempt", edits)
    return evaluate(id, exercises.defined(id, source, f"<{name}>"))


@pytest.mark.parametrize("name", RIGHT)
def test_a_launch_of_another_shape_is_accepted(name):
    id, *edits = RIGHT[name]
    result = attempt(id, name, edits)
    assert result.passed, str(result)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_launch_is_named(name):
    id, edits, words = WRONG[name]
    result = attempt(id, name, edits)
    assert not result.passed
    assert words in " ".join(str(result).split()), str(result)


def test_no_line_of_the_kernel_is_told():
    """It may be the one that the learner writes next."""
    id, edits = FORWARD, [edit("programs[1], B, T, H, V", "1, B, T, H, V")]
    assert "tl.store" not in str(attempt(id, "out of bounds", edits))
