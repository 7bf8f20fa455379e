"""The lab for kernels that nobody here wrote: in Python, and from the shell on a file."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba import cuda, float32

from warplens import banks, machine_code, occupancy, races, roofline, timeline, trace
from warplens.faults import DivergentBarrier, OutOfBounds
from warplens.launched import launch_of, main
from warplens.least_time import Ceiling

needs_triton = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton has wheels for Linux only"
)

FILE = """
import numpy as np
from numba import cuda, float32

SIDE = 8


@cuda.jit
def prepare(x):
    x[cuda.grid(1)] *= 2


@cuda.jit
def mirrored(x, y):
    s = cuda.shared.array(SIDE, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    {barrier}
    y[cuda.grid(1)] = s[SIDE - 1 - t]


@cuda.jit
def never_launched(x):
    x[0] = 1


if __name__ == "__main__":
    x = cuda.to_device(np.arange(16, dtype=np.float32))
    y = cuda.device_array_like(x)
    prepare[2, SIDE](x)
    cuda.synchronize()
    assert x.copy_to_host()[15] == 30, "the launches before it are run"
    mirrored[2, SIDE](x, y)
    raise SystemExit("nobody comes here")
"""

EVERYTHING = """
import numpy as np
from numba import cuda, vectorize


@vectorize(["float32(float32)"], target="cuda")
def halved(x):
    return x / 2


@cuda.reduce
def total(a, b):
    return a + b


@cuda.jit("void(float32[::1])")
def prepare(x):
    x[cuda.grid(1)] *= 2


@cuda.jit(["void(float32[::1], float32)"])
def scaled(x, by):
    if cuda.grid(1) < x.size:
        x[cuda.grid(1)] *= by


stream = cuda.stream()
with stream.auto_synchronize():
    x = cuda.to_device(np.ones(64, np.float32), stream=stream)
    prepare[1, 64, stream](x)
assert isinstance(cuda.get_current_device().name, str) and len(cuda.gpus) == 1
assert cuda.current_context().get_memory_info().free > 0
assert halved(x).copy_to_host().sum() == 64 and total(x) == 128
scaled.forall(x.size)(x, 3.0)
"""

TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def scaled(x, y, n, by, BLOCK: tl.constexpr):
    o = tl.program_id(0) * {step} + tl.arange(0, BLOCK)
    tl.store(y + o, by * tl.load(x + o, o < n), o < n)


def main():
    x = torch.ones(100)
    y = torch.empty_like(x)
    scaled[(triton.cdiv(100, 32),)](x, y, 100, 2.0, BLOCK=32)


main()
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        file = tmp_path / "theirs.py"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return written


@cuda.jit
def gather(x, y, shift):
    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for n in range(32):
        s[n, t] = x[n, t]
    cuda.syncthreads()
    y[t] = s[t, 0] + s[0, t + shift]


def test_the_shell_runs_a_file_up_to_the_launch(write):
    file = write(FILE.format(barrier="cuda.syncthreads()"))
    command = [sys.executable, "-m", "warplens", "trace", f"{file}:mirrored"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "mirrored: 2 blocks of 8 threads" in ran.stdout
    assert "s[t] = x[cuda.grid(1)]" in ran.stdout and "nobody" not in ran.stdout


def test_what_an_encoding_lacks_is_a_question_mark(write):
    text = FILE.format(barrier="cuda.syncthreads()").replace("(1)]\n", "(1)]  # é\n")
    file = write(text)
    command = [sys.executable, "-m", "warplens", "trace", f"{file}:mirrored"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "x[cuda.grid(1)]  # ?" in ran.stdout


def test_a_race_is_told_and_fails_the_command(write, capsys):
    assert main([write(FILE.format(barrier="pass")) + ":mirrored"]) == 1
    assert "RACE on s[" in capsys.readouterr().out


def test_a_reader_that_has_stopped_is_no_wrong_request(write, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        main([write(FILE.format(barrier="pass")) + ":mirrored"])


def test_a_launch_in_words(write, capsys):
    file = write(FILE.format(barrier="cuda.syncthreads()"))
    launch = "[3, SIDE](rand(3 * SIDE), np.zeros(24, 'f4'))"
    assert main([f"{file}:mirrored", launch, "--blocks", "2", "--arch", "sm_90"]) == 0
    output = capsys.readouterr().out
    assert "These are 2 of 3 blocks" in output
    assert "mirrored, sm_90" in output or "missing" in output
    launched = launch_of(file, "mirrored", launch)
    assert launched.grid == 3 and launched.args[0] == 8 and launched.args[1].dtype == torch.float32


def test_the_host_of_a_file_may_use_what_a_program_may(write, capsys):
    assert main([write(EVERYTHING) + ":scaled", "--arch", "sm_90"]) == 0
    output = capsys.readouterr().out
    assert "scaled: 1 block of 128 threads" in output
    assert "scaled, sm_90" in output or "missing" in output


def test_a_package_that_is_not_there_is_named_with_its_extra(write, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert main([write(TRITON.format(step="BLOCK")) + ":scaled"]) == 2
    assert "pip install 'warplens[triton]'" in capsys.readouterr().err


@needs_triton
@pytest.mark.parametrize("step, code", [("BLOCK", 0), ("(BLOCK - 1)", 1)])
def test_triton_from_the_shell(write, capsys, step, code):
    file = write(TRITON.format(step=step))
    assert main([f"{file}:scaled", "--arch", "sm_90"]) == code
    output = capsys.readouterr().out
    assert (
        "4 programs" in output and "LDG" in output and ("race: element 31 of y" in output) == code
    )
    assert main([f"{file}:scaled", "[(2,)](rand(64), zeros(64), 64, 3.0, BLOCK=32)"]) == code


@pytest.mark.parametrize(
    "where, launch, message",
    [
        ("mirrored", None, "is not like file.py:kernel"),
        ("{}:nothing", None, "nobody comes here"),
        ("{}:nothing", "[1, 8](rand(8))", "no kernel 'nothing'; it has prepare, mirrored"),
        ("{}:never_launched", "[1](rand(8))", "a kernel of numba needs [grid, block], got [1]"),
        ("{}:never_launched", "[1, 8](rand(8), 3)", "too many positional arguments"),
        ("nowhere.py:x", None, "there is no file nowhere.py"),
    ],
)
def test_a_wrong_request_says_what_is_needed(write, capsys, where, launch, message):
    file = write(FILE.format(barrier="cuda.syncthreads()"))
    arguments = [where.format(file), *([launch] if launch else [])]
    try:
        assert main(arguments) == 2
    except SystemExit as error:  # the file's own
        assert message in str(error)
    else:
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, name, message",
    [
        ("@cuda.reduce\ndef total(a, b):\n    return a + b\n", "total", "function of @cuda.reduce"),
        ("@vectorize(['f4(f4)'], target='cuda')\ndef up(x): ...\n", "up", "of @vectorize"),
        ("def (\n", "total", "is no Python at line 1"),
    ],
)
def test_what_a_file_has_that_is_no_kernel_is_named(write, capsys, text, name, message):
    assert main([f"{write(text)}:{name}"]) == 2
    assert message in capsys.readouterr().err


def test_a_page_for_a_missing_folder_is_refused_before_anything_runs(write, capsys, tmp_path):
    file = write("raise SystemExit(3)\n")
    assert main([f"{file}:x", "--html", str(tmp_path / "not" / "there.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_launch_of_clusters_in_words_is_refused(write, capsys):
    text = "from numba import cuda\n@cuda.jit\ndef one(x):\n    x[0] = 1\n"
    assert main([f"{write(text)}:one", "[1, 32, 0, 0, (2, 1, 1)](zeros(4))"]) == 2
    assert "clusters, of (2, 1, 1), are not simulated" in capsys.readouterr().err


def test_a_file_that_launches_nothing_or_breaks(write, capsys):
    file = write(FILE.format(barrier="pass").replace('raise SystemExit("nobody comes here")', ""))
    assert main([f"{file}:never_launched"]) == 2
    assert "does not launch never_launched\ngive a launch" in capsys.readouterr().err
    file = write(FILE.format(barrier="pass").replace("== 30", "== 31"))
    assert main([f"{file}:mirrored"]) == 2
    assert "stops before it launches mirrored, AssertionError" in capsys.readouterr().err
    assert cuda.to_device.__module__ != "warplens.launched"  # all is as before


def test_a_trace_is_taken_where_a_launch_is():
    launch = gather, 1, 32, np.ones((32, 32), "f4"), np.zeros(32, "f4"), 0
    t = trace(*launch)
    assert t.bank_conflicts == 31 and races(t) == races(*launch) == []
    assert str(races(t)) == "no race"
    assert "31 conflicts" in str(banks(t)) == str(banks(*launch))
    line = next(row.line for row in t.rows if row.array == "s" and row.op == "store")
    assert "no conflict" in str(banks(t, line=line, op="store", nth=3))
    with pytest.raises(TypeError, match="pass no launch with it"):
        races(t, 1, 32)
    with pytest.raises(TypeError, match="grid is missing"):
        races(gather)


def test_a_run_that_ended_early_does_not_pass_for_one_without_races():
    with pytest.raises(OutOfBounds):
        races(gather, 1, 32, np.ones((32, 32), "f4"), np.zeros(32, "f4"), 1)

    @cuda.jit
    def half_wait(x):
        if cuda.threadIdx.x < 16:
            cuda.syncthreads()
        x[cuda.threadIdx.x] = 1

    with pytest.raises(DivergentBarrier):
        races(half_wait, 1, 32, np.zeros(32, "f4"))


def test_arrays_that_are_on_a_gpu_are_copied_from_there():
    class OnGpu:
        def copy_to_host(self):
            return np.ones((32, 32), "f4")

    y = np.zeros(32, "f4")
    t = trace(gather, 1, 32, OnGpu(), y, 0)
    assert t.arguments[1][5] == 2 and not y.any()


def test_what_is_no_kernel():
    with pytest.raises(TypeError, match="needs what cuda.jit, triton.jit or gluon.jit made"):
        trace(3, 1, 32)
    with pytest.raises(TypeError, match="block is missing"):
        trace(gather, 1)
    with pytest.raises(ValueError, match="does not access shared memory"):
        banks(lambda x: None, 1, 32, np.zeros(32))


@needs_triton
def test_a_kernel_of_triton(write):
    launch = launch_of(write(TRITON.format(step="BLOCK")), "scaled")
    with pytest.raises(TypeError, match="its compiler lays out shared memory"):
        banks(launch.kernel, launch.grid, *launch.args, **launch.named)
    t = launch.trace()
    assert t.times("x") == 1
    assert roofline(t, flops=100).intensity == pytest.approx(100 / 800)
    with pytest.raises(TypeError, match="is not a Gluon kernel"):
        timeline(t)


GLUON = """
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def doubled(x, y, TILE: gl.constexpr):
    s_x = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    o = gl.arange(0, 64, gl.BlockedLayout([1], [32], [2], [0]))
    gl.store(y + o, 2 * s_x.load(gl.BlockedLayout([1], [32], [2], [0])))


doubled[(1,)](torch.ones(64), torch.empty(64), TILE=64, num_warps=2)
"""


@needs_triton
def test_a_file_that_launches_a_kernel_of_gluon(write, capsys):
    file = write(GLUON)
    assert main([f"{file}:doubled"]) == 1
    assert "s_x: a tile is read that has nothing in it" in capsys.readouterr().out


def test_the_code_and_what_fits_of_it():
    from warplens.compiled.assembly import assembly, what_is_missing

    if reason := what_is_missing(gather):
        pytest.skip(reason)
    arguments = float32[:, ::1], float32[::1], 0
    code = machine_code(gather, *arguments, arch="sm_80")
    assert code is assembly(gather, *arguments, arch="sm_80")
    assert code.shared_bytes == 4096 and code.count("BAR")
    assert occupancy(code, 32).blocks_per_sm > 1


def test_the_roof_over_a_trace():
    launch = gather, 1, 32, np.ones((32, 32), "f4"), np.zeros(32, "f4"), 0
    roof = roofline(trace(*launch), flops=32)
    assert roof.intensity == 32 / (4096 + 128) and roof.bound == "memory"
    assert roof.floor_ms == pytest.approx(1e3 * (4096 + 128) / 4.8e12)
    assert "on H200, data sheet" in str(roof)
    measured = Ceiling("mine", bytes_per_s=4.224e9, flops_per_s=1e12, source="my own GPU")
    assert roofline(bytes=4096 + 128, flops=32, ceiling=measured).floor_ms == pytest.approx(1e-3)
    assert roofline(bytes=4096 + 128, flops=32) == roof
    t = trace(gather, 2, 32, *launch[3:], blocks=1)
    with pytest.raises(ValueError, match="bytes="):
        roofline(t, flops=32)
    with pytest.raises(ValueError, match="bytes="):
        roofline(flops=32)
    with pytest.raises(LookupError, match="gpu is 'GTX 1080', needs one of A100"):
        roofline(bytes=1, flops=1, gpu="GTX 1080")
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        roofline(bytes=1, flops=1, dtype="int8")
