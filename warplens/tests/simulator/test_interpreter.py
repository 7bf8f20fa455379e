"""Triton kernels on the CPU: answers, the guard, counts; and all of it next to compiling."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from warplens.compiled.assembly import assembly, can_compile, what_is_missing
from warplens.faults import EndlessLoop, KernelFault, OutOfBounds
from warplens.triton.run import run, trace

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

ROOT = Path(__file__).parents[1]
SCALE = tl.constexpr(3.0)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, scaled(tl.load(x + o, o < n)), o < n)


@triton.jit
def unmasked_load(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o), o < n)


@triton.jit
def unmasked_store(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, o < n))


@triton.jit
def before_the_start(x, y):
    tl.store(y, tl.load(x - 1))


@triton.jit
def standard(x, y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_x = tl.load(x + o)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        total += b_x * i
    total += tl.sum(b_x) + b_x.max() + tl.cdiv(BLOCK, 3) + tl.cumsum(b_x, 0)
    tl.store(y + o, total + tl.exp(-b_x))


@triton.jit
def product(x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    b_x = tl.load(x + o_m[:, None] * K + o_k[None, :])
    b_y = tl.load(y + o_k[:, None] * N + o_n[None, :])
    b_z = tl.dot(b_x, b_y, input_precision="ieee")
    tl.store(z + o_m[:, None] * N + o_n[None, :], b_z)


@triton.jit
def reads_its_neighbour(x, n):
    i = tl.program_id(0)
    tl.store(x + i, tl.load(x + i + 1, i + 1 < n, 0.0) + 1)


@triton.jit
def all_write_the_first(x, y):
    tl.store(y, tl.load(x + tl.program_id(0)))


@triton.jit
def adds(x, y):
    tl.atomic_add(y, tl.load(x + tl.program_id(0)))


@triton.jit
def who(x):
    i = tl.program_id(0) + 2 * tl.program_id(1) + 6 * tl.program_id(2)
    size = tl.num_programs(0) * tl.num_programs(1)
    tl.store(x + i, (i + size).to(tl.float32))


@triton.jit
def broken(x):
    tl.store(x, tl.load(x + tl.arange(0, 2)) + tl.arange(0, 4))


def filled(*shape):
    return torch.full(shape, torch.nan)


def test_a_kernel_and_the_function_it_calls():
    x, y = torch.arange(10.0), filled(10)
    run(scale, 3, x, y, 10, BLOCK=4, num_warps=1)
    assert torch.equal(y, 3 * x)
    run(scale, (3,), x=y, y=x, n=10, BLOCK=4, reverse=True)
    assert torch.equal(x, 3 * y)
    run(scale, lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),), y, x, 10, 4)
    assert torch.equal(x, 3 * y)


def test_the_standard_library_and_a_loop():
    x, y = torch.randn(8), filled(8)
    run(standard, 1, x, y, 4, BLOCK=8)
    want = 6 * x + x.sum() + x.max() + 3 + x.cumsum(0) + (-x).exp()
    torch.testing.assert_close(y, want)


def test_all_three_axes_of_the_grid():
    x = filled(12)
    run(who, (2, 3, 2), x)
    assert torch.equal(x, torch.arange(12.0) + 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dots(dtype):
    x, y, z = torch.randn(4, 16).to(dtype), torch.randn(16, 8).to(dtype), filled(4, 8)
    run(product, 1, x, y, z, 4, 8, 16)
    torch.testing.assert_close(z, x.float() @ y.float())
    t = trace(product, 1, x, y, z, 4, 8, 16)
    kind = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    assert t.dots == {(4, 8, 16, kind): 1} and t.flops == 2 * 4 * 8 * 16


@pytest.mark.parametrize("kernel, array", [(unmasked_load, "x"), (unmasked_store, "y")])
def test_a_missing_mask_is_a_fault_with_a_name_a_program_and_a_line(kernel, array):
    x, y = torch.arange(10.0), filled(12)[:10]  # in memory, there is room behind y
    with pytest.raises(OutOfBounds) as caught:
        run(kernel, 3, x, y, 10, BLOCK=4)
    text = str(caught.value)
    assert f"element 10 of {array}, which has 10" in text and "program (2, 0, 0)" in text
    assert "2 of its 4 unmasked lanes" in text and "tl.store" in text
    assert caught.value.array == array


def test_in_front_of_a_tensor_is_outside_too():
    x = torch.arange(10.0)
    with pytest.raises(OutOfBounds, match="element -1 of x"):
        run(before_the_start, 1, x[1:], filled(1))


def test_views_of_one_tensor():
    x = torch.arange(12.0)
    run(scale, 1, x[:4], x[8:], 4, BLOCK=4)
    assert x[8:].tolist() == [0, 3, 6, 9]


def test_other_mistakes_have_a_line():
    with pytest.raises(KernelFault, match="line .*tl.arange"):
        run(broken, 1, torch.zeros(2))


def test_bad_arguments():
    x = torch.zeros(4)
    with pytest.raises(TypeError, match="missing: BLOCK"):
        run(scale, 1, x, x, 4)
    with pytest.raises(TypeError, match="'BLOK' is neither"):
        run(scale, 1, x, x, 4, BLOCK=4, BLOK=4)
    with pytest.raises(ValueError, match="grid is"):
        run(scale, 0, x, x, 4, BLOCK=4)
    with pytest.raises(ValueError, match="array is 'z'"):
        trace(scale, 1, x, x, 4, BLOCK=4).lanes(array="z")


def test_counts():
    x, y = torch.arange(20.0), torch.zeros(20)
    t = trace(scale, 2, x, y, 20, BLOCK=16)
    assert y.eq(0).all()  # on copies
    assert (t.programs, t.requests(), t.lanes("load")) == (2, 4, 20)
    assert (t.bytes("store", "y"), t.sectors("load", "x")) == (80, 3)
    assert t.times("x") == 1 and t.least_bytes() == 160
    assert not t.races and not t.faults
    assert "2 programs" in str(t) and len(t.rows) == 2
    both = t.by_program("x")
    assert both[0, 0, 0].sum() == 16 and both[1, 0, 0].tolist() == [0] * 16 + [1] * 4


def test_exps_and_repeated_reads():
    x = torch.randn(8)
    assert trace(standard, 1, x, filled(8), 4, BLOCK=8).exps == 8
    t = trace(scale, 2, x, torch.zeros(64), 8, BLOCK=64)
    assert t.times("x") == 1
    again = trace(who, (2, 3, 1), torch.zeros(6))
    assert again.times("x", "store") == 1 and again.times("x") == 0


def test_programs_that_meet_are_races():
    (race,) = trace(all_write_the_first, 2, torch.ones(2), filled(1)).races
    assert "element 0 of y: touched by program (1, 0, 0) and by program (0, 0, 0)" in str(race)
    races = trace(reads_its_neighbour, 4, torch.zeros(4), 4).races
    assert [race.array for race in races] == ["x"]
    assert not trace(adds, 4, torch.ones(4), torch.zeros(1)).races


def test_atomics_add_up():
    y = torch.zeros(1)
    run(adds, 4, torch.arange(4.0), y)
    assert y.item() == 6


def test_a_fault_keeps_the_counts_up_to_it():
    t = trace(unmasked_load, 3, torch.arange(10.0), filled(10), 10, BLOCK=4)
    assert len(t.faults) == 1 and t.lanes("load") == 8
    assert "fault:" in str(t)


def test_order_shows_what_depends_on_it():
    x, y = torch.arange(2.0), filled(1)
    run(all_write_the_first, 2, x, y)
    assert y.item() == 1
    run(all_write_the_first, 2, x, y, reverse=True)
    assert y.item() == 0


@pytest.mark.skipif(not can_compile(scale), reason=str(what_is_missing(scale)))
def test_it_compiles_before_and_after():
    before = assembly(scale, "*fp32", "*fp32", "i32", BLOCK=512).sass
    run(standard, 1, torch.randn(8), filled(8), 4, BLOCK=8)
    assert assembly(scale, "*fp32", "*fp32", "i32", BLOCK=512).sass == before
    assert assembly(standard, "*fp32", "*fp32", "i32", BLOCK=128).count("SHFL") > 0
    x, y = torch.arange(10.0), filled(10)
    run(scale, 3, x, y, 10, BLOCK=4)
    assert torch.equal(y, 3 * x)


def test_where_triton_was_not_told_to_interpret():
    """On a machine with a GPU kernels are made to be compiled; all of this file holds there too."""
    if isinstance(scale, triton.JITFunction):
        pytest.skip("this is that run")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--noconftest", "-p", "no:cacheprovider"]
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    process = subprocess.run([*command, __file__], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@triton.jit
def in_its_own_type(x, y, z, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_x, b_y = tl.load(x + o), tl.load(y + o)
    b_z = tl.where(b_x < b_y, b_x * b_y + b_x, b_x - b_y)
    tl.store(z + o, b_z.to(z.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_as_torch_rounds_them(dtype):
    x, y = torch.randn(2, 64).to(dtype)
    z = torch.empty_like(x)
    run(in_its_own_type, 1, x, y, z, 64)
    assert torch.equal(z, torch.where(x < y, x * y + x, x - y))


@triton.jit
def without_other(x, y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, o < n))


def test_masked_lanes_of_a_load_hold_nan_unless_it_says_what():
    x, y = torch.ones(4), filled(8)
    memory = run(without_other, 1, x, y, 4, 8)
    assert y[:4].equal(x) and y[4:].isnan().all() and "tl.load(x + o" in str(memory.undefined)
    assert not memory.regions[1].never_written().any()


@triton.jit
def multiplied(a, b):
    return a * b


@triton.jit
def later_if_larger(a, i, b, j):
    return tl.where(b > a, b, a), tl.where(b > a, j, i)


@triton.jit
def larger_by_branch(a, b):
    if b > a:
        a = b
    return a


@triton.jit
def reduces(x, y):
    """Three products, the place of the largest of each row, and the largest of each column."""
    o_r, o_c = tl.arange(0, 4), tl.arange(0, 8)
    b_x = tl.load(x + o_r[:, None] * 8 + o_c[None, :])
    tl.store(y + o_c, tl.reduce(b_x, 0, multiplied))
    tl.store(y + 8 + o_r[:, None] + o_c[None, :] * 0, tl.reduce(b_x, 1, multiplied, keep_dims=True))
    tl.store(y + 12, tl.reduce(b_x, None, multiplied))
    places = tl.broadcast_to(o_c[None, :], [4, 8])
    _, b_n = tl.reduce((b_x, places), 1, later_if_larger)
    tl.store(y + 13 + o_r, b_n.to(tl.float32))
    tl.store(y + 17 + o_c, tl.reduce(b_x, 0, larger_by_branch))
    tl.store(y + 25, tl.reduce(tl.load(x + o_c), 0, multiplied))


def test_reductions_by_a_function_of_ones_own():
    x, y = 1 + torch.rand(4, 8), filled(26)
    run(reduces, 1, x, y)
    want = [x.prod(0), x.prod(1), x.prod().view(1), x.argmax(1).float()]
    want = torch.cat([*want, x.amax(0), x[0].prod().view(1)])
    torch.testing.assert_close(y, want)


@triton.jit
def reduces_rows(x, y):
    o_r, o_c = tl.arange(0, 4), tl.arange(0, 8)
    tl.store(y + o_r, tl.reduce(tl.load(x + o_r[:, None] * 8 + o_c[None, :]), 1, multiplied))


def test_ones_own_function_is_not_called_for_each_number(monkeypatch):
    """As Triton's interpreter calls it: in every token, that would outlast a check."""
    monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", None)
    x, y = 1 + torch.rand(4, 8), filled(4)
    run(reduces_rows, 1, x, y)
    torch.testing.assert_close(y, x.prod(1))


@triton.jit
def waits_for_ever(x, y):
    i = 0
    while i < 1:
        tl.store(y, tl.load(x))


def test_an_endless_loop_ends_with_its_line_and_program():
    with pytest.raises(EndlessLoop, match="program .0, 0, 0.: still looping after 1,000") as caught:
        run(waits_for_ever, 1, torch.ones(1), filled(1))
    assert "tl.store" in str(caught.value) or "while" in str(caught.value)


@triton.jit
def wide(x, y):
    o = tl.arange(0, 16)
    b_x = tl.load(x + o[:, None] * 16 + o[None, :])
    b_y = tl.dot(b_x, b_x)
    tl.store(y + o[:, None] * 16 + o[None, :], (b_y.to(tl.float64) + 1).to(tl.float32))


@pytest.mark.parametrize("tf32, want", [(False, 16 + 2**-8), (True, 16.0)])
def test_products_lose_the_bits_that_tensor_cores_do_not_take_where_asked(tf32, want):
    x = torch.full((16, 16), 1 + 2**-13)  # 1 of 10 bits after the point
    y = filled(16, 16)
    run(wide, 1, x, y, tf32=tf32)
    assert torch.allclose(y, torch.full((16, 16), want + 1), rtol=0, atol=2**-20)


def test_float64_and_tf32_are_noted_with_their_lines():
    arithmetic = run(wide, 1, torch.ones(16, 16), filled(16, 16)).arithmetic
    assert "tl.dot(b_x, b_x)" in str(arithmetic.tf32) and "tl.float64" in str(arithmetic.float64)
    arithmetic = run(
        product, 1, torch.ones(4, 16), torch.ones(16, 8), filled(4, 8), 4, 8, 16
    ).arithmetic
    assert arithmetic.tf32 is None and arithmetic.float64 is None


@triton.jit
def under_two_conditions(x, y, n, m):
    o = tl.arange(0, 4)
    tl.store(y + o, tl.load(x + o), (o < n) & (n < m))


def test_a_mask_of_a_tile_and_a_number_is_counted_lane_by_lane():
    for m, written in ((5, [True, True, False, False]), (1, [False] * 4)):
        memory = run(under_two_conditions, 1, torch.ones(4), filled(4), 2, m)
        assert memory.regions[1].written.tolist() == written


@triton.jit
def summed_in(x, y, z, K: tl.constexpr, KIND: tl.constexpr):
    o, o_k = tl.arange(0, 16), tl.arange(0, K)
    b_x, b_y = tl.load(x + o[:, None] * K + o_k), tl.load(y + o_k[:, None] * 16 + o)
    tl.store(z + o[:, None] * 16 + o, tl.dot(b_x, b_y, out_dtype=KIND).to(tl.float32))


def test_a_product_in_float16_is_rounded_on_its_way_and_noted():
    x = torch.ones(16, 64, dtype=torch.float16)
    y = torch.zeros(64, 16, dtype=torch.float16)
    y[0], y[16:] = 2048, 0.0625  # then three times 1, half of the last digit
    z, want = filled(16, 16), x.float() @ y.float()
    memory = run(summed_in, 1, x, y, z, K=64, KIND=tl.float32)
    assert torch.equal(z, want) and memory.arithmetic.float16 is None
    memory = run(summed_in, 1, x, y, z, K=64, KIND=tl.float16)
    assert z.unique().tolist() == [2048] and want[0, 0] == 2051
    assert "tl.dot" in memory.arithmetic.float16.text
