"""Each claim about machine code, on a kernel that shows it and on one that does not."""

import contextlib
import math
import threading

import numpy as np
import pytest
import torch

from warplens.architectures import ARCHITECTURES
from warplens.compiled import from_numba
from warplens.compiled.assembly import CompileError, assembly, what_is_missing

if what_is_missing():
    pytest.skip(what_is_missing(), allow_module_level=True)

from helpers.vectors import load4, store4
from numba import cuda, float32, int64

X1, X2 = float32[::1], float32[:, ::1]
N = 64


@cuda.jit
def four_neighbours(x, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = x[i, 0] + x[i, 1] + x[i, 2] + x[i, 3]


@cuda.jit
def one_float4(x, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        a, b, c, d = load4(x, (i, 0))
        y[i] = a + b + c + d


@cuda.jit(device=True)
def scaled(x):
    return math.exp(x) * float32(N)


@cuda.jit
def reverse_block(x, y):
    s_x = cuda.shared.array((N, 4), float32)
    t = cuda.threadIdx.x
    store4(s_x, (t, 0), load4(x, (t, 0)))
    cuda.syncthreads()
    y[t] = scaled(s_x[N - 1 - t, 1])


@cuda.jit
def sum_and_keep(x, y, z):
    i = cuda.grid(1)
    cuda.atomic.add(y, i % 4, x[i])
    z[i] = cuda.atomic.add(y, 5, x[i])


@cuda.jit
def indexed_by_data(x, y):
    s = cuda.local.array(N, float32)
    i = cuda.grid(1)
    for j in range(N):
        s[(i * j) % N] = x[j]
    y[i] = s[i % N]


@cuda.jit
def squares(x, y):
    s = cuda.local.array(N, float32)
    i = cuda.grid(1)
    for j in range(N):
        s[j] = x[i * N + j]
    for t in range(100):
        for j in range(N):
            s[j] = s[j] * s[j] + x[t]
    for j in range(N):
        y[i * N + j] = s[j]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float4_is_one_load_and_neighbours_are_four(arch):
    scalar = assembly(four_neighbours, X2, X1, arch=arch)
    vector = assembly(one_float4, X2, X1, arch=arch)
    assert (scalar.count("LDG"), scalar.count("LDG.E.128")) == (4, 0)
    assert (vector.count("LDG"), vector.count("LDG.E.128")) == (1, 1)
    assert "ld.global.v4.f32" in vector.ptx or "ld.global.v4.b32" in vector.ptx
    assert vector.arch == arch


def test_count_matches_whole_modifiers():
    vector = assembly(one_float4, X2, X1)
    assert vector.count("LD") == 0
    assert vector.count("LDG.E.12") == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_atomics(arch):
    code = assembly(sum_and_keep, X1, X1, X1, arch=arch)
    # One throws the old value away (a reduction), the other keeps it.
    assert code.count("RED") + code.count("REDG") == 1
    assert code.count("ATOMG") == 1
    assert code.atomics == 2
    assert assembly(one_float4, X2, X1, arch=arch).atomics == 0


def test_local_array_indexed_by_data_is_memory():
    code = assembly(indexed_by_data, X1, X1)
    assert code.local_bytes == 4 * N
    assert code.count("STL") and code.count("LDL")
    assert assembly(squares, X1, X1).local_bytes == 0


def test_spills_only_when_registers_are_short():
    free, tight = assembly(squares, X1, X1), assembly(squares, X1, X1, max_registers=32)
    assert free.registers > N and free.spill_stores == free.spill_loads == 0
    assert tight.registers <= 32 and tight.spill_stores > 0 and tight.spill_loads > 0
    assert tight.local_bytes > 0


def test_options_of_the_decorator_count():
    def divide(x, y):
        i = cuda.grid(1)
        y[i] = math.exp(x[i]) / (x[i] + float32(1))

    exact = assembly(cuda.jit(divide), X1, X1)
    fast = assembly(cuda.jit(fastmath=True)(divide), X1, X1)
    assert sum(fast.counts.values()) < sum(exact.counts.values()) / 2
    assert assembly(cuda.jit(max_registers=24)(squares.py_func), X1, X1).registers <= 24


def test_shared_bytes_follow_constants_in_kernel_and_device_function():
    whole = assembly(reverse_block, X2, X1)
    small = assembly(reverse_block, X2, X1, constants={"N": 8})
    assert (whole.shared_bytes, small.shared_bytes) == (16 * 64, 16 * 8)
    assert whole.count("STS.128") == whole.count("BAR.SYNC") == 1
    # The device function multiplies by N: 64 stands in the code of one only.
    assert any(" 64" in i for i in whole.by_line()[line_of("float32(N)")])
    assert not any(" 64" in i for i in small.by_line()[line_of("float32(N)")])


def line_of(text):
    with open(__file__) as file:
        return next(n for n, line in enumerate(file, 1) if text in line and "def" not in line)


def test_by_line_and_views():
    code = assembly(reverse_block, X2, X1)
    lines = code.by_line()
    assert [text for _, text in code.listing()] == code.sass.splitlines()
    load = lines[line_of("store4(s_x")]
    assert any(i.startswith("LDG.E.128") for i in load) and any("STS.128" in i for i in load)
    assert any("BAR" in i for i in lines[line_of("cuda.syncthreads()")])
    assert sum(len(v) for v in lines.values()) <= sum(code.counts.values())
    assert "cuda.syncthreads()\n          BAR.SYNC" in code.annotated()
    assert all(i in code.annotated(full=True) for i in load)


@pytest.mark.parametrize("file", ["<ipython-input-1-0123abcd>", "/tmp/ipykernel_7/4242.py"])
def test_kernels_of_a_notebook_map_to_their_cell(file):
    cell = "def twice(x):\n    i = cuda.grid(1)\n    x[i] = x[i] * float32(2)\n"
    names = {"cuda": cuda, "float32": float32}
    exec(compile(cell, file, "exec"), names)
    lines = assembly(names["twice"], X1).by_line()
    assert any(i.startswith("LDG") for i in lines[3]) and set(lines) <= {1, 2, 3}


def test_arguments_as_arrays_tensors_and_scalars():
    def scale(x, a, n):
        i = cuda.grid(1)
        if i < n:
            x[i] *= a

    by_type = assembly(scale, X1, float32, int64)
    assert assembly(scale, np.zeros(4, np.float32), np.float32(2), 4).sass == by_type.sass
    assert assembly(scale, torch.zeros(4), np.float32(2), 4).sass == by_type.sass
    with pytest.raises(TypeError, match="needs 3: x, a, n"):
        assembly(scale, X1)
    with pytest.raises(TypeError, match="bfloat16"):
        assembly(scale, torch.zeros(4, dtype=torch.bfloat16), 2, 4)


def test_same_call_is_compiled_once_and_new_globals_are_not_the_same_call(monkeypatch):
    first = assembly(reverse_block, X2, X1)
    assert assembly(reverse_block, X2, X1) is first
    monkeypatch.setitem(globals(), "N", 32)
    assert assembly(reverse_block, X2, X1).shared_bytes == 16 * 32


def test_summary_is_short_and_stable():
    text = assembly(one_float4, X2, X1).summary()
    assert "LDG.E.128 ×1" in text and len(text.splitlines()) < 12
    assert text == assembly(one_float4, X2, X1, fastmath=False).summary()


def test_errors_are_short_and_point_at_the_line():
    def no_name(x):
        x[0] = missing_name  # noqa: F821

    def bad_index(x):
        i = cuda.grid(1)
        x[i] = x[i, 1, 2]

    def too_much_shared(x):
        s_x = cuda.shared.array(100000, float32)
        s_x[cuda.threadIdx.x] = x[0]
        cuda.syncthreads()
        x[1] = s_x[cuda.threadIdx.x + 1]

    def padded(x):
        s_x = cuda.shared.array((N, N + 1), float32)
        s_x[0, 0] = x[0]
        x[1] = s_x[0, 0]

    def of_any_length(x):
        row = cuda.local.array(x.shape[0], float32)
        row[0] = x[0]
        x[1] = row[0]

    for kernel, why in (
        (no_name, r"'missing_name' is not defined\n +line \d+: x\[0\] = missing_name"),
        (bad_index, r"cannot index .* with 3 indices.*\n +line \d+: x\[i\] = x\[i, 1, 2\]"),
        (padded, r"a global name, such as PADDED = N \+ 1\n +line \d+: s_x = cuda.shared.array"),
        (of_any_length, r"a number or a global name.*\n +line \d+: row = cuda.local.array"),
        (too_much_shared, "too_much_shared.*uses too much shared data"),
    ):
        with pytest.raises(CompileError, match=why) as error:
            assembly(kernel, X1)
        assert len(str(error.value).splitlines()) <= 2


def test_two_threads_compile_each_for_its_own_architecture():
    """Both try to be inside at once; numba's lock lets the second in when the first has left."""
    from numba.cuda import dispatcher

    ask, answers, both = dispatcher.get_current_device, {}, threading.Barrier(2)

    def wait_for_both():
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)

    def compile_for(cc):
        with from_numba._compiling_for(cc):
            wait_for_both()
            answers[cc] = dispatcher.get_current_device().compute_capability
            wait_for_both()

    threads = [threading.Thread(target=compile_for, args=(cc,)) for cc in ((8, 0), (9, 0, "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 2 and all(cc == answer for cc, answer in answers.items())
    assert dispatcher.get_current_device is ask


def test_bad_input():
    with pytest.raises(ValueError, match="arch is 'sm_12', needs one of sm_80"):
        assembly(one_float4, X2, X1, arch="sm_12")
    with pytest.raises(TypeError, match="unknown option 'fast'"):
        assembly(one_float4, X2, X1, fast=True)
    with pytest.raises(TypeError, match="kernel is a int"):
        assembly(3)


def test_started_counts_up_to_the_first_of_a_kind():
    from warplens.compiled.assembly import Assembly

    sass = (
        "MOV R1, R2\n@P0 LDG.E.128 R4, [R2]\nLDG.E R8, [R2]\nFFMA R1, R4, R5, R6\nLDG.E R9, [R2]\n"
    )
    fields = dict.fromkeys(Assembly.__dataclass_fields__, None) | {"sass": sass}
    asm = Assembly(**fields)
    assert asm.started("LDG", "FFMA") == 2
    assert asm.started("LDG.E.128", "FFMA", "FMUL") == 1
    assert asm.started("LDG", "REDG") == 3
