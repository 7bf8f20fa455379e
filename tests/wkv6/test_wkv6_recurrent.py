"""The fused recurrent WKV-6, one token in place, the options of every method, and the rule."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wkv6_cases import (
    DECAYS,
    HALF,
    NAMES,
    SINGLE,
    gradients_given,
    in_float64,
    make,
    near,
    results,
)

pytest.importorskip("triton")
from support.wkv6_options import DECAY, ENDS, compiles, interpreted, packed, raw_of

from rwkv_lessons.runtime.devices import H200  # noqa: E402
from rwkv_lessons.runtime.plain import launches_directly  # noqa: E402
from rwkv_lessons.sequences import recurrence  # noqa: E402
from rwkv_lessons.sequences.decays import log_decay  # noqa: E402
from rwkv_lessons.wkv6 import (
    METHODS,
    method_for,
    wkv6,
    wkv6_doubling,
    wkv6_recurrent,
    wkv6_reference,
    wkv6_step,
)
from rwkv_lessons.wkv6.recurrent import backward as recurrent_backward
from rwkv_lessons.wkv6.recurrent import forward as recurrent
from warplens.compiled import assembly


def in_kernels(x, cu_seqlens=None, scale=1.0, raw_decay=False, do=None, ds1=None):
    """o, s1 and the gradients from the Triton kernels, also on CPU tensors (interpreted)."""
    if do is None:
        do, ds1 = gradients_given(x)
    o, s1, kept = recurrent.forward(*x, cu_seqlens, scale, raw_decay, True)
    given = (*x, cu_seqlens, kept, do, ds1, scale, raw_decay)
    return o, s1, *recurrent_backward.gradients(*given)


def one_by_one(x, ends, scale, raw_decay, do, ds1):
    """What packed sequences are to give: each by itself, in float64, scale and decay written out.

    The gradient of a raw decay of +inf is 0, the limit; torch would make 0 · inf of it.
    """
    leaves = [y.detach().double().requires_grad_() for y in x]
    r, k, v, w, u, s0 = leaves
    w = log_decay(w) if raw_decay else w
    parts = [
        wkv6_reference(*(y[:, a:b] for y in (scale * r, k, v, w)), u, s0[n : n + 1])
        for n, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True))
        if b > a
    ]
    full = [n for n, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True)) if b > a]
    s1 = s0.clone()
    s1[full] = torch.cat([s for _, s in parts])
    o = torch.cat([o for o, _ in parts], 1)
    return o, s1, *torch.autograd.grad([o, s1], leaves, [do.double(), ds1.double()])


# The kernels, in Triton's interpreter.


@interpreted
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("shape", [(2, 1, 2, 8, 8), (1, 5, 3, 5, 7), (2, 11, 1, 8, 4)])
def test_kernels_are_the_reference(shape, w, monkeypatch):
    _short_spans(monkeypatch)
    x = make(*shape, w, torch.float32)
    near(in_kernels(x), in_float64(x), SINGLE + shape[1] * DECAY)


def _short_spans(monkeypatch, span=4):
    """Several spans in a few tokens: kept states are read, and the last span is shorter."""
    for module in (recurrent, recurrent_backward):
        monkeypatch.setattr(module, "CHECKPOINT", span)


@interpreted
@settings(max_examples=15, deadline=None)
@given(T=st.integers(1, 10), K=st.integers(1, 18), V=st.integers(1, 18), w=st.sampled_from(DECAYS))
def test_kernels_at_any_shape(T, K, V, w):
    x = make(1, T, 2, K, V, w, torch.float32)
    near(in_kernels(x), in_float64(x), SINGLE + T * DECAY)


@interpreted
def test_kernels_without_states():
    *x, _ = make(1, 7, 2, 6, 9, dtype=torch.float32)
    x.append(None)
    do, ds1 = gradients_given(x)
    want = results(wkv6_reference, [y if y is None else y.double() for y in x], do, 0 * ds1)
    o, s1, kept = recurrent.forward(*x, None, 1.0, False, True)
    given = (*x, None, kept, do, None, 1.0, False)
    near([o, s1, *recurrent_backward.gradients(*given)], want, SINGLE)


@interpreted
@pytest.mark.parametrize("raw_decay", [False, True])
def test_kernels_with_packed_sequences(raw_decay, monkeypatch):
    _short_spans(monkeypatch)
    x, cu_seqlens = packed(torch.float32)
    x = raw_of(x) if raw_decay else x
    do = torch.randn_like(x[2])
    ds1 = torch.randn_like(x[5])
    want = one_by_one(x, ENDS, 0.7, raw_decay, do, ds1)
    near(in_kernels(x, cu_seqlens, 0.7, raw_decay, do, ds1), want, SINGLE)


@interpreted
@pytest.mark.parametrize("w", [-8.0, -50.0])
@pytest.mark.parametrize("raw_decay", [False, True])
def test_kernels_with_every_option_and_strong_decays(raw_decay, w, monkeypatch):
    _short_spans(monkeypatch)
    x, cu_seqlens = packed(torch.float32)
    x[3] = torch.full_like(x[3], math.log(-w) if raw_decay else w)
    do, ds1 = torch.randn_like(x[2]), torch.randn_like(x[5])
    want = one_by_one(x, ENDS, 0.7, raw_decay, do, ds1)
    # exp(x) is right to 2⁻²⁵ of itself, so of a decay of 50 to 50 times that
    near(in_kernels(x, cu_seqlens, 0.7, raw_decay, do, ds1), want, SINGLE + 50 * DECAY)


@interpreted
def test_values_and_keys_over_several_programs(monkeypatch):
    """dv is then a sum of parts, o is none."""
    monkeypatch.setattr(recurrent_backward, "TILE", 16)
    monkeypatch.setattr(recurrence, "TILE", 16)
    tile_for = recurrence.tile_for.__wrapped__
    monkeypatch.setattr(recurrent, "tile_for", tile_for)
    x = make(1, 6, 2, 8, 12, dtype=torch.float32)
    BK, _, _ = recurrent_backward.tile_for(2, 8, 12, H200.sms)
    programs, *_ = tile_for(2, 6, 8, 12, H200.sms)
    assert BK < 8 and programs == 2 * 3
    near(in_kernels(x), in_float64(x), SINGLE)


@interpreted
def test_half_precision_is_rounded_once():
    x = make(1, 9, 2, 8, 8, dtype=torch.float16)
    half = dict.fromkeys(("o", "dr", "dk", "dv"), HALF[torch.float16])
    limits = half | {"dw": HALF[torch.float16] + SINGLE, "": SINGLE}
    near(in_kernels(x), in_float64(x), limits)


@interpreted
def test_only_the_first_state_is_kept_of_a_short_sequence():
    """No memory beyond the inputs: up to CHECKPOINT tokens, the backward pass starts from s0."""
    x = make(1, recurrent.CHECKPOINT - 1, 1, 4, 4, dtype=torch.float32)
    assert recurrent.forward(*x, None, 1.0, False, True)[2].numel() == 0


# Their machine code.


def _forward_code(dtype, T, heads):
    """The kernel as it is launched for heads of 64 × 64."""
    x, f = f"*{dtype}", "*fp32"
    _, warps, sizes, stages = recurrence.tile_for(heads, T, 64, 64, H200.sms)
    constants = (*sizes, recurrent.CHECKPOINT, stages)
    tensors = (x, x, x, x, f, f, None, x, f, None)
    numbers = ("i32", "i32", "i32", "fp32")
    kernel = recurrent.wkv6_recurrent_fwd_kernel
    return assembly.assembly(kernel, *tensors, *numbers, *constants, False, num_warps=warps)


@compiles
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("heads", [32, 512])
def test_tokens_are_loaded_ahead_and_nothing_spills(dtype, heads):
    code = _forward_code(dtype, 54, heads)
    assert code.count("LDGSTS") == 4 * recurrence.STAGES  # r, k, v and w of each
    assert code.spill_stores == code.local_bytes == code.atomics == 0


@compiles
def test_the_state_of_one_token_moves_16_bytes_at_a_time():
    code = _forward_code("bf16", 1, 16384)
    wide = 64 * 64 // (4 * 32) // 4  # per thread of 4 warps, 4 numbers at a time
    assert code.count("LDG.E.128") == code.count("STG.E.128") == wide
    assert code.spill_stores == 0 and code.registers <= 128  # 4 programs share 65,536


@compiles
@pytest.mark.parametrize("heads", [32, 512])
def test_gradients_need_no_atomics(heads):
    x, f, n = "*bf16", "*fp32", "i32"
    BK, BV, warps = recurrent_backward.tile_for(heads, 64, 64, H200.sms)
    tensors = (x, x, x, x, f, f, None, f, x, f, f, x, x, f, x, f, f)
    constants = (64, 64, BK, BV, recurrent_backward.STAGES, False)
    kernel = recurrent_backward.wkv6_recurrent_bwd_kernel
    arguments = (*tensors, n, n, n, n, n, n, "fp32", *constants)
    code = assembly.assembly(kernel, *arguments, num_warps=warps)
    assert code.spill_stores == code.local_bytes == code.atomics == 0


# Options, of every method that works here.

HERE = [name for name in METHODS if name != "cuda"]
EVERY = [METHODS[name] for name in HERE] + [wkv6]


@pytest.mark.parametrize("method", EVERY, ids=[*HERE, "wkv6"])
@pytest.mark.parametrize("raw_decay", [False, True])
def test_options_of_every_method(method, raw_decay):
    x, cu_seqlens = packed()
    x = raw_of(x) if raw_decay else x
    do, ds1 = torch.randn_like(x[2]), torch.randn_like(x[5])
    want = one_by_one(x, ENDS, 0.3, raw_decay, do, ds1)
    options = {"cu_seqlens": cu_seqlens, "scale": 0.3, "raw_decay": raw_decay}
    got = results(lambda *y: method(*y, **options), x, do, ds1)
    near(got, want, 1e-12)


def test_packed_sequences_without_a_state():
    x, cu_seqlens = packed()
    o, s1 = wkv6(*x[:5], cu_seqlens=cu_seqlens)
    near((o, s1), wkv6(*x[:5], torch.zeros_like(x[5]), cu_seqlens=cu_seqlens), 1e-15)
    assert (s1[1] == 0).all() and (s1[[0, 2, 3]] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_scale_does_not_round_twice(dtype):
    x = make(1, 40, 2, 8, 8, dtype=dtype)
    o, _ = wkv6(*x, scale=0.3)
    want = wkv6_reference(*(y.double() for y in x), scale=0.3)[0]
    assert o.dtype == dtype
    near([o], [want], HALF[dtype])


@pytest.mark.parametrize("method", EVERY, ids=[*HERE, "wkv6"])
@pytest.mark.parametrize(
    "name, value, error, message",
    [
        ("cu_seqlens", [0, 9], TypeError, "cu_seqlens must be a tensor, got list"),
        ("cu_seqlens", torch.tensor([0.0, 9]), TypeError, "cu_seqlens must be one of int32, int64"),
        (
            "cu_seqlens",
            torch.tensor([9]),
            ValueError,
            r"cu_seqlens must be \[S \+ 1\] .* got \[1\]",
        ),
        (
            "cu_seqlens",
            torch.tensor([0, 5, 4, 9]),
            ValueError,
            "must increase from 0 to T = 9, got",
        ),
        ("cu_seqlens", torch.tensor([1, 9]), ValueError, "must increase from 0 to T = 9, got"),
        ("cu_seqlens", torch.tensor([0, 8]), ValueError, "must increase from 0 to T = 9, got"),
        ("cu_seqlens", torch.tensor([0, 9], device="meta"), ValueError, "on r's device cpu, got"),
        ("cu_seqlens", torch.tensor([0, 4, 9]), ValueError, r"s0 must be \[S, .* = \[2, 2, 4, 5\]"),
        ("scale", "1", TypeError, "scale must be a number, got str"),
        ("scale", True, TypeError, "scale must be a number, got bool"),
        ("raw_decay", 1, TypeError, "raw_decay must be True or False, got int"),
    ],
)
def test_a_wrong_option_is_named(method, name, value, error, message):
    x = make(1, 9, 2, 4, 5, dtype=torch.float32)
    with pytest.raises(error, match=message):
        method(*x, **{name: value})


def test_packed_sequences_need_a_batch_of_one():
    x = make(2, 3, 2, 4, 5)
    with pytest.raises(ValueError, match="r must have B = 1 if cu_seqlens is given, got B = 2"):
        wkv6(*x, cu_seqlens=torch.tensor([0, 3]))


# One token, in place.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_is_one_token_in_place(dtype):
    x = make(3, 1, 2, 4, 5, dtype=dtype)
    state = x[5].clone()
    for raw_decay in (False, True):
        want, after = wkv6(*x[:5], state, scale=0.5, raw_decay=raw_decay)
        o = wkv6_step(*x[:5], state, scale=0.5, raw_decay=raw_decay)
        assert torch.equal(o, want) and torch.equal(state, after)


@interpreted
def test_the_kernel_of_a_step_works_in_place():
    x = make(3, 1, 2, 8, 5, dtype=torch.float32)
    want = wkv6_reference(*(y.double() for y in x))
    o, s1 = recurrent.run_forward(*x, None, 1.0, False, s1=x[5])
    assert s1 is x[5]
    near((o, s1), want, SINGLE)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"k": torch.zeros(2, 1, 2, 3)}, ValueError, "k must be"),
        ({"state": None}, TypeError, "state must be a tensor of torch.float32, got NoneType"),
        ({"state": torch.zeros(2, 2, 5, 4)}, ValueError, r"state must be .*= \[2, 2, 4, 5\]"),
        ({"state": torch.zeros(2, 2, 4, 5).half()}, TypeError, "state must be .*got torch.float16"),
        (
            {"state": torch.zeros(2, 2, 4, 10)[..., ::2]},
            ValueError,
            r"contiguous, got .* strides \(",
        ),
        ({"u": torch.zeros(2, 4, requires_grad=True)}, ValueError, "gradient: .* see wkv6"),
    ],
)
def test_a_wrong_step_is_named(change, error, message):
    names = "r k v w u state".split()
    x = dict(zip(names, make(2, 1, 2, 4, 5, dtype=torch.float32), strict=True))
    with pytest.raises(error, match=message):
        wkv6_step(**x | change)
    with pytest.raises(ValueError, match=r"r must be \[B, 1, H, K\], one token, got \[1, 2,"):
        wkv6_step(*make(1, 2, 1, 4, 4))


def test_a_step_is_a_good_operator():
    x = make(2, 1, 2, 4, 5, dtype=torch.float32)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv6_step.default, (*x, 0.5, False))


# The rule, and torch.compile.


@pytest.mark.usefixtures("on_an_h200")
def test_the_rule_is_the_table_of_its_docstring():
    rows = [line.split("|")[1:-1] for line in method_for.__doc__.splitlines() if "|" in line]
    named = {cells[3].strip() for cells in rows[2:]}
    found = {
        method_for(device, dtype, T, heads, size, gradients, packed)
        for device in ("cpu", "cuda")
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
        for T in (1, 4, 5, 16, 17, 128, 129, 4096)
        for heads in (8, 512)
        for size in (64, 300, 1025)
        for gradients in (False, True)
        for packed in (False, True)
    }
    assert found == named <= set(METHODS)
    for (device, dtype, *shape), method in {
        ("cpu", torch.bfloat16, 1, 512, 64, False): "reference",
        ("cpu", torch.bfloat16, 9, 512, 64, False): "doubling",
        ("cuda", torch.float64, 9, 512, 64, True): "doubling",
        ("cuda", torch.bfloat16, 1, 512, 64, False): "recurrent",
        ("cuda", torch.bfloat16, 1, 512, 4096, True): "recurrent",
        ("cuda", torch.bfloat16, 5, 512, 4096, True): "doubling",
        ("cuda", torch.float16, 54, 32, 64, False): "chunked",
        ("cuda", torch.bfloat16, 4096, 512, 64, True): "chunked",
        ("cuda", torch.float32, 4096, 512, 64, False): "cuda",
        ("cuda", torch.float32, 4096, 64, 100, False): "chunked",
        ("cuda", torch.float32, 54, 32, 64, False): "recurrent",
        ("cuda", torch.float32, 65, 32, 64, False): "chunked",
        ("cuda", torch.float32, 54, 32, 64, True): "chunked",
        ("cuda", torch.float32, 54, 512, 64, False): "cuda",
    }.items():
        assert method_for(device, dtype, *shape) == method
    for size, method in ((64, "chunked"), (300, "recurrent")):
        assert method_for("cuda", torch.float32, 4096, 512, size, True, packed=True) == method


@pytest.mark.usefixtures("on_an_h200")
def test_more_tokens_never_bring_the_recurrent_method_back():
    for heads in (1, 8, 32, 128, 512):
        for gradients in (False, True):
            rule = (heads, 64, gradients)
            names = [method_for("cuda", torch.bfloat16, T, *rule) for T in range(1, 300)]
            assert names == sorted(names, key=lambda name: name != "recurrent")


@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"raw_decay": True}])
def test_compiled_without_a_graph_break(options):
    x = make(1, 5, 1, 4, 4, dtype=torch.float32)
    for f in (wkv6, wkv6_recurrent):
        compiled = torch.compile(f, fullgraph=True, backend="eager")
        near(compiled(*x, **options), f(*x, **options), 1e-6, NAMES)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("state", [True, False])
def test_packed_sequences_compiled_without_a_graph_break(backend, state):
    """Gradients, too: the operator computes the sequences again."""
    x, cu_seqlens = packed()
    do, ds1 = torch.randn_like(x[2]), torch.randn_like(x[5])
    x = x if state else [*x[:5], torch.zeros_like(x[5])]
    for f in (wkv6, wkv6_reference):

        def call(*y, f=f):
            y = y if state else (*y[:5], None)
            return f(*y, cu_seqlens=cu_seqlens, scale=0.5, raw_decay=True)

        compiled = torch.compile(call, fullgraph=True, backend=backend)
        used = x if state else x[:5]
        found, want = ([], [])
        for function, into in ((compiled, found), (call, want)):
            leaves = [y.detach().requires_grad_() for y in used]
            results = function(*leaves, *x[len(used) :])
            into += [*results, *torch.autograd.grad(results, leaves, (do, ds1))]
        near(found, want, 1e-12)  # of float64, the same sums


def test_packed_sequences_are_a_good_operator():
    x, cu_seqlens = packed()
    x = [y.requires_grad_() for y in x]
    operator = torch.ops.rwkv_lessons.wkv6_packed.default
    for inputs in (x, [*x[:5], None]):
        torch.library.opcheck(operator, ("wkv6_doubling", *inputs, cu_seqlens))


def test_second_gradients_of_packed_sequences_are_right():
    x, cu_seqlens = make(1, 4, 1, 2, 2), torch.tensor([0, 1, 4])
    x = [y.requires_grad_() for y in (*x[:5], torch.randn(2, 1, 2, 2, dtype=torch.float64))]

    def operator(*y):
        return torch.ops.rwkv_lessons.wkv6_packed("wkv6_doubling", *y, cu_seqlens)[0]

    assert torch.autograd.gradgradcheck(operator, x)


def test_the_package_works_without_triton():
    """As on macOS and on Windows: the other methods, and one token in place."""
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from rwkv_lessons.wkv6 import METHODS, method_for, wkv6, wkv6_step\n"
        "assert 'recurrent' not in METHODS\n"
        "assert method_for('cuda', torch.float16, 1, 64, 64, False) == 'cuda'\n"
        "x = [torch.ones(1, 1, 2, 3)] * 3 + [-torch.ones(1, 1, 2, 3), torch.ones(2, 3)]\n"
        "state = torch.zeros(1, 2, 3, 3)\n"
        "assert wkv6_step(*x, state).eq(wkv6(*x)[0]).all() and state.eq(1).all()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_float64_goes_to_matrix_products():
    x = make(1, 5, 1, 4, 4)
    for got, want in zip(wkv6_recurrent(*x), wkv6_doubling(*x), strict=True):
        assert torch.equal(got, want)


# On a GPU.

GPU_SHAPES = [(2, 33, 3, 5, 7), (1, 100, 2, 100, 100), (1, 40, 150, 128, 64), (1, 9, 1, 1024, 24),
              (1, 9, 1, 24, 1024), (3, 21, 64, 64, 64), (1, 3, 70_000, 8, 4)]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", [1, 2, 17, 54, 100, 1000])
def test_recurrent_is_the_reference(T, w):
    x = make(2, T, 3, 64, 64, w, torch.float32, device="cuda")
    near(results(wkv6_recurrent, x), in_float64(x), SINGLE + min(T, 400) * DECAY)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_recurrent_at_odd_shapes(shape):
    x = make(*shape, dtype=torch.float32, device="cuda")
    near(results(wkv6_recurrent, x), in_float64(x), SINGLE)
    x[5] = None
    near(results(wkv6_recurrent, x), in_float64(x), SINGLE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("w_dtype", [None, torch.float32])
@pytest.mark.parametrize("w", [-0.3, "mixed"])
def test_recurrent_in_half_precision(dtype, w_dtype, w):
    x = make(2, 100, 80, 64, 64, w, dtype, w_dtype, device="cuda")
    half = dict.fromkeys(("o", "dr", "dk", "dv"), HALF[dtype])
    limit = SINGLE + 10 * DECAY
    limits = half | {"dw": HALF[x[3].dtype] + limit, "": limit}
    near(results(wkv6_recurrent, x), in_float64(x), limits)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*METHODS, "wkv6"])
@pytest.mark.parametrize("raw_decay", [False, True])
def test_options_of_every_method_on_a_gpu(name, raw_decay):
    method = METHODS.get(name, wkv6)
    ends = [0, 1, 1, 70, 135, 200]
    x, cu_seqlens = packed(torch.float32, 64, 64, ends, "cuda")
    x = raw_of([y.cpu() for y in x]) if raw_decay else x
    x = [y.cuda() for y in x]
    do, ds1 = torch.randn_like(x[2]), torch.randn_like(x[5])
    want = one_by_one(x, ends, 0.3, raw_decay, do, ds1)
    options = {"cu_seqlens": cu_seqlens, "scale": 0.3, "raw_decay": raw_decay}
    near(results(lambda *y: method(*y, **options), x, do, ds1), want, 1e-5)


@pytest.mark.gpu
def test_recurrent_takes_views_odd_addresses_streams_and_graphs():
    x = make(2, 50, 4, 64, 64, dtype=torch.float32, device="cuda")
    do, ds1 = gradients_given(x)
    want = results(wkv6_recurrent, x)

    def same(got):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

    same(results(wkv6_recurrent, x))  # no atomics: the same bits every time
    same(results(wkv6_recurrent, [y.mT.contiguous().mT for y in x]))
    odd = [torch.cat([y.new_zeros(1), y.flatten()])[1:].view(y.shape) for y in x]
    assert all(y.data_ptr() % 16 for y in odd)
    near(results(wkv6_recurrent, odd), in_float64(x), SINGLE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        elsewhere = results(wkv6_recurrent, x)
    stream.synchronize()
    same(elsewhere)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = results(wkv6_recurrent, x, do, ds1)
    graph.replay()
    same(replayed)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 64, 20_000])
def test_steps_and_their_graph_on_a_gpu(heads):
    x = make(1, 1, heads, 64, 64, dtype=torch.bfloat16, device="cuda")
    want, s = [], x[5].double()
    for _ in range(3):
        o, s = wkv6_reference(*(y.double() for y in x[:5]), s)
        want.append(o)
    state, graph = x[5].clone(), torch.cuda.CUDAGraph()
    first = wkv6_step(*x[:5], state)
    with torch.cuda.graph(graph):
        second = wkv6_step(*x[:5], state)
    graph.replay()
    near([first, second], want, HALF[torch.bfloat16])
    third, last = wkv6(*x[:5], state)
    near([third, last], [want[2], s], {"o": HALF[torch.bfloat16], "": SINGLE})


@pytest.mark.gpu
@pytest.mark.parametrize("raw_decay", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_steps_with_every_option_on_a_gpu(dtype, raw_decay):
    """Decays as strong and as weak as there are, odd sizes; in place."""
    x = make(3, 1, 50, 100, 36, dtype=dtype, device="cuda")
    x = [y.cuda() for y in raw_of([y.cpu() for y in x])] if raw_decay else x
    options, state = {"scale": 0.3, "raw_decay": raw_decay}, x[5].clone()
    want = wkv6_reference(*(y.double() for y in x), **options)
    o = wkv6_step(*x[:5], state, **options)
    near((o, state), want, {"o": HALF[dtype] + SINGLE, "": SINGLE})


@pytest.mark.gpu
def test_recurrent_in_torch_compile_and_opcheck():
    x = make(2, 20, 2, 64, 64, dtype=torch.float32, device="cuda")
    compiled = torch.compile(wkv6_recurrent, fullgraph=True)
    want = in_float64(x)
    near(results(compiled, x), want, SINGLE)
    with torch.no_grad():
        near(compiled(*x), want, SINGLE)
    one = make(2, 1, 2, 64, 64, dtype=torch.float32, device="cuda")
    state, want = one[5].clone(), wkv6(*one)
    o = torch.compile(wkv6_step, fullgraph=True)(*one[:5], state)
    near((o, state), [y.double() for y in want], SINGLE)

    operators = torch.ops.rwkv_lessons
    torch.library.opcheck(operators.wkv6_step.default, (*one, 0.5, False))
    packed_x, cu_seqlens = packed(torch.float32, 16, 16, device="cuda")
    for inputs, ends in ((x, None), (packed_x, cu_seqlens), ([*x[:5], None], None)):
        leaves = [y if y is None else y.clone().requires_grad_() for y in inputs]
        arguments = (*leaves, ends, 0.5, True, True)
        torch.library.opcheck(operators.wkv6_recurrent_forward.default, arguments)
        o, s1, kept = recurrent.forward(*inputs, ends, 0.5, True, True)
        arguments = (*inputs, ends, kept, o, s1, 0.5, True)
        torch.library.opcheck(operators.wkv6_recurrent_backward.default, arguments)


@pytest.mark.gpu
def test_the_package_launches_without_the_dispatcher_only_where_that_is_the_same():
    x = make(1, 3, 2, 64, 64, dtype=torch.float32, device="cuda")
    assert launches_directly(*x)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert not launches_directly(x[0])
    assert launches_directly(*x, torch.nn.Parameter(x[0]), None)
    assert not launches_directly(*x, torch._neg_view(x[0]))
