"""Programs written for a GPU run unchanged without one; what is wrong is said, with its line."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import warplens
from warplens.programs import findings

HOME = os.path.dirname(os.path.dirname(warplens.__file__))
MLIR = os.environ.get("WARPLENS_MLIR_PYTHON")  # a Python that has numba-cuda-mlir, and not numba

RIGHT = """
import sys
import numpy as np
from numba import cuda, float32

@cuda.jit("(float32[:], float32[:])")
def doubled(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[63 - t] = x[t]
    cuda.syncthreads()
    y[t] = 2 * s[t]

stream, start, end = cuda.stream(), cuda.event(), cuda.event()
x = cuda.to_device(np.arange(64, dtype=np.float32), stream=stream)
y = cuda.device_array_like(x)
start.record(stream)
doubled[1, 64, stream](x, y)
end.record(stream)
end.synchronize()
cuda.synchronize()
assert cuda.event_elapsed_time(start, end) > 0 and cuda.is_available()
assert y.copy_to_host()[0] == 126
print("arguments", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""

RACE = RIGHT.replace("    cuda.syncthreads()\n", "")

FAULTS = """
import numpy as np
from numba import cuda, float32

@cuda.jit
def outside(x):
    x[cuda.threadIdx.x + 1] = 1

@cuda.jit
def divergent(x):
    if cuda.threadIdx.x < 3:
        cuda.syncthreads()

@cuda.jit
def unwritten(x):
    s = cuda.local.array(4, float32)
    x[cuda.threadIdx.x] = s[1]

@cuda.jit
def endless(x):
    while x[0] == 0:
        x[1] = 1

@cuda.jit
def dividing(x):
    x[cuda.threadIdx.x] = 1 // cuda.threadIdx.x

for kernel in (outside, divergent, unwritten, endless, dividing):
    try:
        kernel[1, 8](np.zeros(8, np.float32))
    except Exception as error:
        print(kernel.__name__, "|", type(error).__name__, "|", str(error).replace("\\n", " "))
"""


def ran(tmp_path, text, *arguments, python=sys.executable, options=(), **environment):
    (tmp_path / "program.py").write_text(text)
    command = [python, "-m", "warplens", "run", *options, "program.py", *arguments]
    environment = os.environ | {"PYTHONPATH": HOME} | environment
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_program_that_is_right_keeps_its_exit_status(tmp_path):
    run = ran(tmp_path, RIGHT, "7")
    assert run.returncode == 7, run.stderr
    assert "arguments ['7']" in run.stdout
    assert "no race and no fault in 1 launch" in run.stderr


def test_a_race_is_reported_with_both_lines_in_each_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ran(tmp_path, RACE, "0", options=["--report", "json"]).returncode == 1
    report = json.loads((tmp_path / "warplens-report.json").read_text())
    assert report["launches"] == 1 and [x["line"] for x in report["findings"]] == [10, 11]
    again = findings.Findings()
    again.merge(report)
    race, unwritten = map(findings.annotation, again)
    assert race.startswith("::error file=program.py,line=10,title=Race in doubled::race on s[")
    assert "line 11" in race and "title=UninitialisedRead" in unwritten
    page = findings.as_html(again)
    assert "<mark>   10     s[63 - t] = x[t]" in page and "src=" not in page


def test_a_report_that_cannot_be_written_does_not_hide_what_was_found(tmp_path):
    (tmp_path / "warplens-report.json").mkdir()
    run = ran(tmp_path, RACE, "0", options=["--report", "json"])
    assert run.returncode == 1
    assert "the json report is not written: " in run.stderr and "race on s[" in run.stderr


def test_wrong_seconds_are_named(tmp_path):
    for text in ("x", "-1", "nan", "inf"):
        run = ran(tmp_path, RIGHT, "0", WARPLENS_SECONDS=text)
        needed = f"WARPLENS_SECONDS must be a number of seconds above 0, got {text!r}"
        assert run.returncode == 1 and needed in run.stderr
        run = ran(tmp_path, RIGHT, "0", options=[f"--seconds={text}"])
        assert run.returncode == 2 and f"invalid seconds value: {text!r}" in run.stderr


def test_without_the_search_for_races_the_rest_is_found(tmp_path):
    run = ran(tmp_path, RACE, "0", options=["--no-races"])
    assert run.returncode == 1 and "race on" not in run.stderr
    assert "is read before anything was written" in run.stderr


def test_each_kind_of_fault_reaches_the_program_with_its_line(tmp_path):
    run = ran(tmp_path, FAULTS, options=["--seconds", "0.5"])
    assert run.returncode == 1, "it caught them all; the report does not forget them"
    raised = dict(line.split(" | ", 1) for line in run.stdout.splitlines())
    assert raised["outside"].startswith("OutOfBounds | x[8] is out of bounds (shape (8,))   line 7")
    assert raised["divergent"].startswith("DivergentBarrier | ") and "line 12" in run.stdout
    assert raised["endless"].startswith("EndlessLoop | still looping after 0.5 s")
    assert raised["dividing"].startswith("ZeroDivisionError | tid=[0, 0, 0] ctaid=[0, 0, 0]: ")
    assert "unwritten: UninitialisedRead: s[1] is read" in run.stderr


def test_the_hook_that_the_wheel_lays_beside_the_packages(tmp_path):
    (tmp_path / "program.py").write_text(RACE)
    hook = open(os.path.join(HOME, "warplens", "warplens.pth"), encoding="utf-8").read()
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = f"{tmp_path}{os.pathsep}{HOME}"
    run = subprocess.run(
        [sys.executable, "program.py", "0"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path, "WARPLENS": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 1 and "race on s[" in run.stderr, run.stderr


def test_a_program_without_a_launch_is_not_called_right(tmp_path):
    run = ran(tmp_path, "import nothing_of_this_name")
    assert run.returncode == 1 and "no kernel was launched" in run.stderr, run.stderr


def test_python_reads_the_hook_twice_in_a_virtual_environment_and_the_report_is_one(tmp_path):
    (tmp_path / "program.py").write_text(RIGHT)
    hook = open(os.path.join(HOME, "warplens", "warplens.pth"), encoding="utf-8").read()
    (tmp_path / "sitecustomize.py").write_text(f"{hook}\n{hook}")
    path = f"{tmp_path}{os.pathsep}{HOME}"
    run = subprocess.run(
        [sys.executable, "program.py", "0"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path, "WARPLENS": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0 and run.stderr.count("no race and no fault") == 1, run.stderr


def test_a_kernel_that_is_not_simulated_is_not_called_right(tmp_path):
    text = RIGHT.replace("t = cuda.threadIdx.x", "t = cuda.cg.this_thread_block().thread_rank()")
    run = ran(tmp_path, text, "0")
    assert text != RIGHT and run.returncode == 1 and "not simulated, so not looked at" in run.stderr


TESTS = textwrap.dedent("""
    import numpy as np
    from numba import cuda

    @cuda.jit
    def shifted(x):
        t = cuda.threadIdx.x
        if t < 7:
            x[t + 1] = x[t]

    @cuda.jit
    def right(x):
        x[cuda.threadIdx.x] += 1

    def test_right():
        x = np.zeros(8)
        right[1, 8](x)
        assert x.all()

    def test_race():
        shifted[1, 8](np.zeros(8))

    @cuda.jit
    def spread(x):
        t = cuda.threadIdx.x
        if t < 7:
            x[t + 1] = x[t]

    def test_wrong_result():
        x = np.zeros(8)
        spread[1, 8](x)
        assert x.all()

    def test_outside():
        right[1, 9](np.zeros(8))
""")


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "1"]])
def test_pytest_fails_the_test_that_launches_a_race(tmp_path, workers):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "warplens.programs.pytest_plugin", *workers]
    command += ["--warplens", "--warplens-report=json", "-q"]
    run = subprocess.run(
        # Named, not found: an older installation has no entry point yet, a newer one has.
        command, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": HOME, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "3 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert "test_it.py:13: OutOfBounds" in run.stdout and "checked_array.py" not in run.stdout
    assert "race on x[" in run.stdout and "test_it.py:9: shifted" in run.stdout
    assert "warplens found call" in run.stdout and "spread" in run.stdout  # beside its assertion
    findings = json.loads((tmp_path / "warplens-report.json").read_text())["findings"]
    assert [x["test"].split("::")[1] for x in findings] == [
        "test_race",
        "test_wrong_result",
        "test_outside",
    ]
    assert [x["kind"] for x in findings] == ["Race", "Race", "OutOfBounds"]


@pytest.mark.skipif(not MLIR, reason="WARPLENS_MLIR_PYTHON names no Python with numba-cuda-mlir")
def test_a_program_of_numba_cuda_mlir(tmp_path):
    new = "from numba_cuda_mlir import cuda\nfrom numba_cuda_mlir.types import float32"
    text = RACE.replace("from numba import cuda, float32", new)
    run = ran(tmp_path, text, "0", python=MLIR)
    assert run.returncode == 1 and "race on s[" in run.stderr, run.stderr
    run = ran(tmp_path, RIGHT.replace("from numba import cuda, float32", new), "0", python=MLIR)
    assert run.returncode == 0, run.stderr
    (tmp_path / "program.py").write_text(text)
    command = [MLIR, "-m", "warplens", "trace", "program.py:doubled", "--html", "page.html"]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": HOME},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 1 and "RACE on s[" in run.stdout, run.stderr
    assert "machine code of numba-cuda-mlir" in (tmp_path / "page.html").read_text()
