"""The whole path of the bench without a GPU: choose, make inputs, check, time, show, refuse."""

import functools
import inspect
import itertools
import os
import re
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from rwkv_lessons.bench import methods, peers, timing
from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands import ceilings, run
from rwkv_lessons.bench.measure import in_float64, make_inputs, measure
from rwkv_lessons.bench.methods import Method
from rwkv_lessons.bench.show import rows_table
from rwkv_lessons.operations import LADDERS, OF_LADDER, OPERATIONS, operation_of, work
from rwkv_lessons.operations.entries import BLOCKS, NUMBA, TRITON
from rwkv_lessons.records.fingerprint import fingerprint
from rwkv_lessons.records.rates import floor_seconds, flops_per_second
from rwkv_lessons.records.schema import Measurement, Provenance, load
from warplens.compiled import assembly
from warplens.cuda import trace
from warplens.triton import run as interpreter

CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


@pytest.fixture
def wkv5():
    inputs = make_inputs("wkv5", (2, 5, 2, 64), "float32", CPU)
    return SimpleNamespace(inputs=inputs, expected=in_float64("wkv5", inputs))


def test_work_of_the_readme_table():
    """Counted by hand for the floors in the project's notes: 0.50 ms of memory at 4.3 TB/s and
    0.9 ms of arithmetic at 67 TFLOP/s."""
    least = work("wkv5", OPERATIONS["wkv5"].shapes[0], "float32")
    assert least.bytes == 4 * 8 * 4096 * 4096 * 4 + 2 * 4096 * 4
    assert least.flops == 7 * 8 * 4096 * 64 * 64 * 64
    gpu = {"copy_bytes_per_s": 4.3e12, "fp32_flops_per_s": 67e12, "bf16_flops_per_s": 790e12}
    assert floor_seconds(least, "float32", gpu) == least.flops / 67e12
    half = work("wkv5", OPERATIONS["wkv5"].shapes[0], "bfloat16")
    assert floor_seconds(half, "bfloat16", gpu) == half.bytes / 4.3e12


def test_the_roof_is_that_of_the_unit_that_computes():
    """float32 on tensor cores: three products of TF32, at half the rate of bfloat16 if unknown."""
    least = work("wkv6", OPERATIONS["wkv6"].shapes[0], "float32")
    gpu = {"copy_bytes_per_s": 4.3e12, "fp32_flops_per_s": 67e12, "bf16_flops_per_s": 780e12}
    walk, chunks = (OPERATIONS["wkv6"].unit_of(x) for x in ("cuda", "16_the_chunked_kernel"))
    assert floor_seconds(least, "float32", gpu, walk) == least.flops / 67e12
    assert floor_seconds(least, "float32", gpu, chunks) == least.bytes / 4.3e12  # 0.62 ms
    assert flops_per_second(gpu, "float32", chunks) == 130e12
    assert flops_per_second(gpu | {"tf32_flops_per_s": 300e12}, "float32", chunks) == 100e12
    assert floor_seconds(least, "bfloat16", gpu, walk) == least.flops / 67e12
    units = {OPERATIONS["mla-decode"].unit_of(x) for x in ("decode", "torch absorbed")}
    assert units == {chunks}


def test_a_ladder_in_triton_computes_the_same():
    for name in ("wkv6", "wkv6-backward"):
        ladders = [ladder for ladder in LADDERS if OF_LADDER[ladder].name == name]
        assert [ladder.startswith("wkv6-triton") for ladder in ladders] == [False, True]
        assert {operation_of(f"{ladder}-few").name for ladder in ladders} == {name}
        shape = OPERATIONS[name].quick
        assert work(ladders[1], shape, "float32") == work(name, shape, "float32")


def test_work_of_wkv6_is_that_of_the_projects_floors():
    """0.31 ms forward and 0.87 ms with the backward pass at 4.3 TB/s: 5 and 14 tensors."""
    for operation, tensors, ms in (("wkv6", 5, 0.31), ("wkv6-backward", 14, 0.87)):
        least = work(operation, OPERATIONS[operation].shapes[0], "bfloat16")
        assert least.bytes == pytest.approx(tensors * 8 * 4096 * 4096 * 2, rel=1e-4)
        assert least.bytes / 4.3e9 == pytest.approx(ms, abs=0.01)


def test_gradients_are_checked_too():
    inputs = make_inputs("wkv6-backward", (1, 5, 1, 8), "float32", CPU)
    expected = in_float64("wkv6-backward", inputs)
    products = methods.library("wkv6-backward")["doubling"]
    right = measure("wkv6-backward", products, inputs, expected, 1)
    assert right.problem is None and right.error < 1e-6

    def prepare(*inputs):
        o, *gradients = products.prepare(*inputs)()
        return lambda: (o, *gradients[:3], 2 * gradients[3], gradients[4])

    wrong = measure("wkv6-backward", Method("twice dw", prepare), inputs, expected, 1)
    assert wrong.error == pytest.approx(1, abs=1e-3) and "not timed" in wrong.problem


@pytest.mark.parametrize(
    "given, named",
    [
        (("wkv9", (1, 1, 1, 1), "float32"), "operation is 'wkv9'"),
        (("wkv5", (1, 1, 0, 1), "float32"), "shape is (1, 1, 0, 1)"),
        (("wkv5", (1, 1, 1, 1), "int8"), "dtype is 'int8'"),
    ],
)
def test_work_names_what_is_wrong(given, named):
    with pytest.raises(ValueError, match=named.replace("(", r"\(").replace(")", r"\)")):
        work(*given)


def test_rows_stand_under_the_letters_of_their_operation():
    row = Measurement("one", (3, 1, 2, 64), "bfloat16", median_ms=1.0)
    headings = [c.header for c in rows_table([row], OPERATIONS["wkv7-serving"].letters).columns]
    assert headings == ["method", "S,T,H,N", "dtype", "ms"]


def test_quick_goes_on_with_what_fits(monkeypatch, tmp_path, capsys):
    """`device` is a CPU: a GPU that is out of memory raises the same error."""

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def reference(name, inputs):
        return full() if name in too_large else in_float64(name, inputs)

    too_large, here = ["wkv7"], Provenance("A GPU", "1", "13.0", "2026-11-25", "abc", "q", "events")
    monkeypatch.setattr(run, "ceilings", full)
    monkeypatch.setattr(run, "in_float64", reference)
    monkeypatch.setattr(run, "provenance", lambda commit: here)
    monkeypatch.setattr(run, "QUICKLY", (("wkv6", (1, 5, 1, 16)), ("wkv7", (1, 5, 1, 16))))
    monkeypatch.setattr(timing, "BUDGET_MS", 1)
    options = SimpleNamespace(out=tmp_path, commit="abc")
    record = load(run.time_quickly(options, "cpu"))
    assert {row.method for row in record.rows} >= {"wkv6: chunked", "wkv6: wkv6"}
    assert all(row.median_ms or row.host_ms for row in record.rows) and not record.ceilings
    assert "out of memory: ceilings, wkv7. `quick` needs about 10 GB" in capsys.readouterr().out
    too_large.append("wkv6")
    with pytest.raises(ValueError, match="out of memory: ceilings, wkv6, wkv7"):
        run.time_quickly(options, "cpu")


@no_gpu
def test_a_quick_run_checks_and_times_on_the_cpu(capsys):
    main(["wkv5", "--quick", "--methods", "reference", "--shape", "1,7,2,64"])
    out = capsys.readouterr().out
    assert "no NVIDIA GPU here" in out
    assert re.search(r"method +B,T,H,N", out)
    lines = [line.split() for line in out.splitlines() if line.startswith("reference")]
    assert [line[:3] for line in lines] == [
        ["reference", "1,7,2,64", "float32"],
        ["reference", "1,7,2,64", "bfloat16"],
    ]
    for line in lines:
        error, ms = float(line[3]), float(line[4])
        assert 0 < error < 1e-2 and ms > 0


@no_gpu
@pytest.mark.parametrize(
    "command, message",
    [
        (["wkv5"], "add --quick"),
        (["wkv5", "--quick", "--record", "wkv5-try"], "not recorded"),
        (["ladder", "wkv5"], "no NVIDIA GPU here"),
        (["ceilings", "--record"], "no NVIDIA GPU here"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(command, message):
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert message in stop.value.code and "\n" not in stop.value.code


def test_a_wrong_method_is_not_timed(wkv5):
    zeros = Method("zeros", lambda r, *_: lambda: torch.zeros_like(r))
    row = measure("wkv5", zeros, wkv5.inputs, wkv5.expected)
    assert row.error == 1 and row.median_ms is None and "not timed" in row.problem


def test_an_element_nobody_wrote_is_noticed(wkv5):
    def prepare(r, k, v, w, u):
        def run():
            o = torch.empty_like(r)
            o[:, :-1] = wkv5.expected[:, :-1]
            return o

        return run

    row = measure("wkv5", Method("forgets the last token", prepare), wkv5.inputs, wkv5.expected)
    assert row.error is None and row.median_ms is None and "nan" in row.problem


def test_a_method_that_raises_does_not_stop_the_others(wkv5):
    def prepare(*_):
        raise RuntimeError("this shape is too odd\nand more")

    row = measure("wkv5", Method("peer", prepare, precise=False), wkv5.inputs, wkv5.expected)
    assert row.problem == "RuntimeError: this shape is too odd" and row.n is None


def test_a_right_method_has_every_number(wkv5):
    gpu = {"copy_bytes_per_s": 1e10, "fp32_flops_per_s": 1e10, "bf16_flops_per_s": 1e10}
    reference = methods.library("wkv5")["reference"]
    row = measure("wkv5", reference, wkv5.inputs, wkv5.expected, 5, gpu)
    least = work("wkv5", (2, 5, 2, 64), "float32")
    assert row.problem is None and row.error < 1e-6 and not row.stale
    assert row.p20_ms <= row.median_ms <= row.p80_ms and row.host_ms > 0
    assert row.gb_per_s == pytest.approx(least.bytes / row.median_ms / 1e6)
    assert row.tflop_per_s == pytest.approx(least.flops / row.median_ms / 1e9)
    assert row.roofline_share == pytest.approx(1e3 * least.flops / 1e10 / row.median_ms)


def test_times_are_of_single_calls():
    calls = []
    times = timing.device_times(lambda: calls.append(1), CPU, budget_ms=1000)
    assert timing.MIN_N <= times.n <= timing.MAX_N
    assert len(calls) == timing.WARM_UPS + 1 + times.n
    assert 0 < times.p20_ms <= times.median_ms <= times.p80_ms


def test_a_call_that_takes_longer_than_the_budget_warms_up_once():
    calls = []
    times = timing.device_times(lambda: calls.append(time.sleep(0.002)), CPU, budget_ms=1)
    assert times.n == timing.MIN_N and len(calls) == 1 + 1 + timing.MIN_N


def test_conv1d_says_which_rows_it_is_not_timed_at():
    T = peers.CONV1D_TOKENS
    w, k = torch.ones(1, T + 1), torch.ones(1, 1, T + 1)
    assert peers.timex_conv1d(w[:, :T], k[..., :T])()[0, 0, -1] == T
    with pytest.raises(ValueError, match="not timed above 2,048 tokens"):
        peers.timex_conv1d(w, k)


@pytest.mark.skipif(not assembly.can_compile(), reason=str(assembly.what_is_missing()))
def test_the_float32_ceiling_is_one_of_multiply_adds():
    from numba import float32

    code = assembly.assembly(ceilings.fma_kernel, float32[::1], float32[::1])
    multiply_adds = code.count("FFMA")
    others = sum(code.counts.values()) - multiply_adds
    assert multiply_adds >= 4 * others and code.local_bytes == 0  # NOPs at the end included


@pytest.mark.skipif(not assembly.can_compile(), reason=str(assembly.what_is_missing()))
def test_a_chase_is_one_load_after_the_other():
    from numba import int32, int64

    code = assembly.assembly(ceilings.chase_kernel, int32[::1], int64, int32[::1])
    assert code.count("STG") == 1 and code.local_bytes == 0
    # From what a load brings to the address of the next: one instruction, of some 4 cycles.
    lines = code.sass.splitlines()
    loads = [n for n, line in enumerate(lines) if line.startswith("LDG")]
    assert len(loads) > 1
    for n, following in itertools.pairwise(loads):
        brought = re.match(r"LDG\.E (R\d+),", lines[n])[1]
        address = re.search(r"\[(R\d+)\.64\]", lines[following])[1]
        between = "\n".join(lines[n + 1 : following])
        assert re.search(rf"^IMAD\.WIDE\.U32 {address}, {brought}, 0x4,", between, re.MULTILINE)


@pytest.mark.parametrize("lines", [2, 3, 64])
def test_a_chase_meets_every_line_once_and_each_load_another_sector(lines):
    following = ceilings.random_cycle(lines, CPU).numpy()
    end = np.full(1, -1, np.int32)
    chase = ceilings.chase_kernel
    met = []
    for steps in range(1, lines + 1):
        trace.run(chase, 1, 1, following, steps, end)
        met.append(int(end[0]))
    assert sorted(met) == list(range(0, lines * ceilings.LINE, ceilings.LINE)) and met[-1] == 0
    seen = trace.trace(chase, 1, 1, following, lines, end)
    assert not seen.faults and seen.sectors("global", op="load") == lines


def test_what_a_launch_takes_is_no_part_of_a_latency(monkeypatch):
    launched = []

    class Noted(OnCPU):
        def __getitem__(self, sizes):
            launch = super().__getitem__(sizes)
            return lambda *arrays: (launched.append(arrays[1]), launch(*arrays))

    def seconds(f, device):
        f()
        return 5e-6 + 600e-9 * launched[-1]

    monkeypatch.setattr(ceilings, "chase_kernel", Noted(ceilings.chase_kernel))
    monkeypatch.setattr(ceilings, "stream", lambda: None)
    monkeypatch.setattr(ceilings, "_seconds", seconds)
    assert ceilings.latency_ns(CPU, 16, steps=8) == pytest.approx(600)
    assert launched == [8, 16]


def test_a_chase_through_memory_is_longer_than_the_caches_and_shorter_than_its_array():
    from warplens.architectures import ARCHITECTURES

    line = 4 * ceilings.LINE
    assert ceilings.MEMORY_LINES * line >= timing.CLEAR_BYTES
    assert 2 * ceilings.L2_LINES < ceilings.MEMORY_LINES  # no line is met twice
    largest = max(x.shared_bytes for x in ARCHITECTURES.values())  # the L1 cache is the same memory
    assert ceilings.L2_LINES * line > 4 * largest


class OnCPU:
    """A kernel that the lessons' CPU run executes, called as numba's dispatcher is."""

    def __init__(self, kernel):
        self.kernel, self.py_func = kernel, kernel.py_func

    def __getitem__(self, sizes):
        grid, block, _ = sizes
        return lambda *arrays: trace.run(self.kernel, grid, block, *arrays)


EVERY_RUNG = {rung: OF_LADDER[name] for name, ladder in LADDERS.items() for rung in ladder.rungs}
TRITON_RUNGS = [rung for rung in EVERY_RUNG if rung.tool == TRITON]
FORWARD_RUNGS = [rung for rung in EVERY_RUNG if not rung.after and rung.tool == NUMBA]


@pytest.mark.parametrize("rung", EVERY_RUNG, ids=lambda rung: rung.method)
def test_a_rung_is_a_kernel_or_a_function_of_its_lesson_and_no_wrong_answer(rung):
    pytest.importorskip("triton")
    module = rung.load()
    if rung.function:
        function = rung.load_function()
        # Lesson 19's are lesson 20's function with another kernel.
        lesson = rung.stem.replace("19_copies_in_flight", "20_products_in_flight")
        file = inspect.getsourcefile(getattr(function, "func", function))
        assert file.endswith(f"{lesson}.py")
    assert hasattr(module, rung.kernel) if rung.kernel else rung.function
    sources = methods.rung_method(EVERY_RUNG[rung], rung).sources
    assert fingerprint(*sources) and not any("wrong" in source for source in sources)


@pytest.mark.parametrize("rung", FORWARD_RUNGS, ids=lambda rung: rung.method)
def test_every_rung_goes_through_the_bench(rung, monkeypatch):
    operation = EVERY_RUNG[rung]
    module = rung.load()
    shape = (1, 2, 64) if operation.letters == "B, C, T" else (1, 2, 1, 64)
    launch = getattr(module, rung.launch)
    replaced = SimpleNamespace(**{rung.launch: launch})
    setattr(replaced, rung.kernel, OnCPU(getattr(module, rung.kernel)))
    monkeypatch.setattr(type(rung), "load", lambda self: replaced)
    monkeypatch.setattr(methods, "stream", lambda: None)
    method = methods.rung_method(operation, rung)
    inputs = make_inputs(operation.name, shape, "float32", CPU)
    expected = in_float64(operation.name, inputs)
    run = method.prepare(*inputs)
    for _ in range(2):  # also when its output holds an earlier result
        error = (run().double() - expected).norm() / expected.norm()
        assert error < 1e-6  # a few roundings of float32
    grid, block = launch(*shape)
    monkeypatch.setattr(methods, "resources", lambda kernel: {})  # nothing was compiled
    assert method.facts(run)["block"] == block and grid * block >= 32


@pytest.mark.parametrize("rung", LADDERS["timex-backward"].rungs, ids=lambda rung: rung.method)
def test_gradients_of_time_x_go_through_the_bench(rung, monkeypatch):
    operation, modules = OPERATIONS["timex-backward"], {r: r.load() for r in (rung, rung.after)}
    for module in modules.values():
        for name, kernel in list(vars(module).items()):
            if hasattr(kernel, "py_func") and name != "load4":
                setattr(module, name, OnCPU(kernel))
        module.stream = lambda: None
    monkeypatch.setattr(type(rung), "load", lambda self: modules[self])
    monkeypatch.setattr(methods, "stream", lambda: None)
    inputs = make_inputs(operation.name, (2, 1, 9), "float32", CPU)
    found = methods.rung_method(operation, rung).prepare(*inputs)()
    for got, want in zip(found, in_float64(operation.name, inputs), strict=True):
        assert (got.double() - want).norm() <= 1e-6 * want.norm()  # a few roundings of float32


def test_gradients_of_the_rungs_go_through_the_bench(monkeypatch):
    operation, ladder = OPERATIONS["wkv6-backward"], LADDERS["wkv6-backward"]
    (rung,) = ladder.rungs
    modules = {r: r.load() for r in (rung, rung.after)}
    for module in modules.values():
        for name in ("kernel", "forward_sweep", "backward_sweep", "decay_gradient"):
            if hasattr(module, name):
                setattr(module, name, OnCPU(getattr(module, name)))
        module.stream = lambda: None
    monkeypatch.setattr(type(rung), "load", lambda self: modules[self])
    monkeypatch.setattr(methods, "stream", lambda: None)
    (method, _) = methods.ladder(ladder.name).values()
    inputs = make_inputs(operation.name, (1, 4, 1, 64), "float32", CPU)
    expected = in_float64(operation.name, inputs)
    found = method.prepare(*inputs)()
    assert len(found) == len(expected) == 6  # o, dr, dk, dv, dw, du
    for got, want in zip(found, expected, strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()  # dw is what two sums leave
    assert method.sources[-1] == "solutions/09_the_backward_pass.py::gradients"


@pytest.mark.parametrize("rung", TRITON_RUNGS, ids=lambda rung: rung.method)
def test_every_triton_rung_goes_through_the_bench(rung, monkeypatch):
    pytest.importorskip("triton")
    operation, modules = EVERY_RUNG[rung], {}

    def load(self):
        modules[self] = module = original(self)
        for name, value in vars(module).items():
            if hasattr(value, "arg_names"):  # a kernel
                setattr(module, name, InInterpreter(value))
        return module

    original = type(rung).load
    monkeypatch.setattr(type(rung), "load", load)
    method = methods.rung_method(operation, rung)
    shape = (1, 2, 64) if operation.letters == "B, C, T" else (1, 4, 1, 64)
    inputs = make_inputs(operation.name, shape, "float32", CPU)
    expected = in_float64(operation.name, inputs)
    found = method.prepare(*inputs)()
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()
    assert fingerprint(*method.sources)


class InInterpreter:
    """A Triton kernel that is launched on the CPU."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return functools.partial(interpreter.run, self.kernel, grid)


def test_a_compiled_triton_kernel_tells_what_it_uses():
    form = SimpleNamespace(n_regs=120, n_spills=2)
    form.metadata = SimpleNamespace(shared=64, num_warps=4)
    kernel = SimpleNamespace(device_caches={0: ({"key": form}, {}, None, None, None)})
    facts = {"registers": 120, "local_bytes": 8, "shared_bytes": 64, "block": 128}
    assert methods.compiled(kernel) == facts


@pytest.mark.parametrize("asked", [60, lambda: 60], ids=["property", "method"])
def test_what_a_compiled_kernel_uses_is_read_at_its_launch(asked):
    launches = []
    module = SimpleNamespace(launch=lambda *args: launches.append(args))
    attributes = SimpleNamespace(num_regs=asked, local_size_bytes=0, shared_size_bytes=16)
    kernel = SimpleNamespace(attributes=attributes)
    found = methods.launched(module, lambda: module.launch(kernel, (4, 1, 1), (32, 2, 1), "o"))
    assert found == {"registers": 60, "local_bytes": 0, "shared_bytes": 16, "block": 64}
    assert launches == [(kernel, (4, 1, 1), (32, 2, 1), "o")]
    module.launch(kernel, 1, 1)
    assert len(launches) == 2


def test_the_ladder_ends_with_the_sweep_and_the_finished_kernel_in_place():
    names = list(methods.ladder("wkv5"))
    assert [n for n in names if "[" in n] == [f"06_block_size[{b}]" for b in BLOCKS]
    assert names[0] == "03_atomic_baseline"
    assert [r.method for r in LADDERS["wkv5"].rungs] == [
        n for n in names if "[" not in n and "_" in n
    ]


def test_a_rung_refuses_another_head_size(wkv5):
    method = methods.ladder("wkv5")["04_drop_the_atomics"]
    row = measure("wkv5", method, [x[..., :32] for x in wkv5.inputs], wkv5.expected)
    assert row.problem.startswith("ValueError: head size is 32")


def fake_fla(r, k, v, w, u, scale):
    assert scale == 1.0 and w.shape == r.shape  # fla's own default scale is not RWKV's
    assert (w == w[:1, :1]).all()
    return in_float64("wkv5", (r, k, v, w[0, 0], u)).to(r.dtype), None


def fake_flash(r, k, v, raw, u, state):
    B, _, H, N, _ = *r.shape[:2], *state.shape[1:]
    r, k, v = (x.view(B, -1, H, N) for x in (r, k, v))
    w = -raw.double().exp().view(H, N)
    return in_float64("wkv5", (r, k, v, w, u.view(H, N))).to(r.dtype).flatten(2), state


def test_peers_are_given_what_they_expect(wkv5, monkeypatch):
    fla, flash = ModuleType("fla.ops.rwkv6"), ModuleType("flash_rwkv")
    fla.chunk_rwkv6 = fla.fused_recurrent_rwkv6 = fake_fla
    flash.rwkv5_cuda_linear_attention = fake_flash
    for name, module in {"fla.ops.rwkv6": fla, "flash_rwkv": flash}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(peers, "is_here", lambda name: True)
    monkeypatch.setattr(peers, "version", lambda name: "0")
    found, missing = peers.peers("wkv5")
    assert list(found) == list(OPERATIONS["wkv5"].peers) and not missing
    for method in found.values():
        row = measure("wkv5", method, wkv5.inputs, wkv5.expected, budget_ms=1)
        assert row.problem is None and row.error < 1e-6, method.name
        assert "0" in row.note


@pytest.mark.parametrize("before", [None, "0"])
def test_tilelang_is_allowed_during_a_call_only(before, monkeypatch):
    monkeypatch.delenv(peers.TILELANG, raising=False)
    if before is not None:
        monkeypatch.setenv(peers.TILELANG, before)
    call = peers.with_tilelang(lambda *inputs: lambda: (os.environ[peers.TILELANG], *inputs))(1, 2)
    assert call() == ("1", 1, 2) and os.environ.get(peers.TILELANG) == before


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(peers, "is_here", lambda name: False)
    found, missing = peers.peers("wkv5")
    assert not found and len(missing) == len(OPERATIONS["wkv5"].peers)
    assert "flash-linear-attention is not installed" in missing[0]


@pytest.mark.gpu
def test_the_ladder_on_this_gpu(capsys):
    main(["ladder", "wkv5", "--quick"])
    out = capsys.readouterr().out
    done = [line for line in out.splitlines() if line.startswith("done: 0")]
    timed = [line for line in done if line.endswith(" ms")]
    assert len(done) == len(LADDERS["wkv5"].rungs) + len(BLOCKS)
    refused = [line for line in done if line not in timed]  # 512 threads want too many registers
    assert len(refused) == 1 and "[512]" in refused[0] and "RESOURCES" in refused[0]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ("3,1,64,2,16", "GPUs must be 2, got 3"),
        ("2,1,3,2,16", "T must be at least 4, two tokens a GPU"),
    ],
)
def test_a_shape_that_two_gpus_cannot_share_is_refused(shape, problem):
    with pytest.raises(SystemExit) as end:
        main(["sequence-parallel", "--quick", "--shape", shape])
    assert problem in end.value.code


def test_a_case_of_sequence_parallel_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["sequence-parallel", "--quick", "--methods", "wkv9"])
    assert end.value.code == 2 and "no method wkv9: there are wkv6," in capsys.readouterr().err
