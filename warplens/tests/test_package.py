"""What `pip install warplens` gives: a typed package, quick to import, that names what it lacks."""

import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import warplens

HOME = Path(warplens.__file__).parent


def ran(*command, **options):
    """What a command in this Python prints, with this copy of the package."""
    outside = os.environ | {"PYTHONPATH": str(HOME.parent)}
    completed = subprocess.run(
        [sys.executable, *command],
        **{"capture_output": True, "text": True, "timeout": 120, "env": outside} | options,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


QUICK = """
import sys, time
began = time.process_time()
from warplens import banks, machine_code, occupancy, races, roofline, timeline, trace
seconds = time.process_time() - began
assert not {"numba", "triton", "torch", "matplotlib", "numpy"} & set(sys.modules)
assert occupancy(64, 256).blocks_per_sm == 4
print(seconds)
"""


def test_an_import_takes_no_compiler_and_no_time():
    """0.04 s of processor time here; numba alone takes 0.25, torch a second."""
    assert min(float(ran("-c", QUICK)) for _ in range(2)) < 0.15


HELP = "import runpy, sys, time; sys.argv[1:] = ['--help']; began = time.process_time()"
HELP += """
try:
    runpy.run_module("warplens", run_name="__main__")
except SystemExit:
    print(time.process_time() - began)
"""


def test_help_is_there_at_once():
    *lines, seconds = ran("-c", HELP).splitlines()
    assert float(seconds) < 0.15, "half a second with the interpreter's own start"
    assert "trace" in "\n".join(lines)


def test_a_warning_is_a_line(capsys, monkeypatch):
    from warplens import launched
    from warplens.__main__ import main

    monkeypatch.setattr(launched, "main", lambda argv: warnings.warn("other code", stacklevel=2))
    main(["trace", "mine.py:add"])
    assert capsys.readouterr().err == "warplens: other code\n"


def test_it_tells_its_version():
    assert ran("-m", "warplens", "--version").strip() == f"warplens {warplens.__version__}"


MISSING = """
import sys
sys.modules.update({"matplotlib": None, "numba": None, "numba_cuda_mlir": None})  # as if not there
import numpy as np
import warplens
from warplens.cuda import dialects
def kernel(x): x[0] = 1
assert not warplens.trace(kernel, 1, 1, np.zeros(1)).faults
for what in (dialects.cuda, lambda: warplens.kernels._pictures("style")):
    try:
        what()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_what_is_not_installed_is_named_with_what_installs_it():
    numba, pictures = ran("-c", MISSING).splitlines()
    assert numba == "numba is not installed: pip install 'warplens[numba]'"
    assert pictures == "matplotlib is not installed: pip install 'warplens[pictures]'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy: setuptools leaves files beside what it builds."""
    source, out = tmp_path_factory.mktemp("source") / "warplens", tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests", "build")
    shutil.copytree(HOME, source, ignore=leave)
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    ran("-c", build, str(out), cwd=source)
    (file,) = out.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_has_every_file_that_the_package_needs(wheel):
    built = {name for name in wheel.namelist() if ".dist-info" not in name}
    there = {
        f"warplens/{file.relative_to(HOME).as_posix()}"
        for file in HOME.rglob("*")
        if file.suffix in (".py", ".js", ".css", ".typed")
        and not {"tests", "build"} & set(file.relative_to(HOME).parts)
    }
    there -= {"warplens/setup.py"}
    assert built == there | {"warplens.pth"} and "warplens/py.typed" in built


def test_the_wheel_asks_for_little(wheel):
    (name,) = (x for x in wheel.namelist() if x.endswith("METADATA"))
    about = message_from_bytes(wheel.read(name))
    assert about["Version"] == warplens.__version__
    needs = [Requirement(text) for text in about.get_all("Requires-Dist")]
    always = {r.name for r in needs if r.marker is None}
    assert always == {"numpy", "greenlet", "rich"}
    for extra in ("numba", "machine-code", "pictures"):
        requirements = {r.name for r in needs if r.marker and r.marker.evaluate({"extra": extra})}
        assert requirements and not requirements & {"torch", "triton"}, f"{extra} brings no torch"


SCRIPT = """
from pathlib import Path

import numpy as np
import warplens
from warplens import machine_code, occupancy, races, roofline, trace
from warplens.cuda.trace import Trace
from warplens.triton.trace import TritonTrace


def look(kernel: object) -> float:
    seen = trace(kernel, 4, 64, np.zeros(256, np.float32))
    if isinstance(seen, Trace):
        conflicts: int = seen.bank_conflicts + seen.requests(op="load", array="x")
    elif isinstance(seen, TritonTrace):
        conflicts = seen.lanes("store")
    for race in races(seen):
        print(race)
    for fault in seen.faults:
        print(fault.what, fault.line)
    page: Path = seen.write_html("out.html", machine_code(kernel, arch="sm_80"))
    fits = occupancy(machine_code(kernel, arch="sm_90"), threads=256)
    share: float = fits.share + roofline(seen, flops=1e9).floor_ms
    print(page.name, conflicts, warplens.__version__.upper())
    return share


occupancy("64", threads=256)
roofline(flop=1e9)
trace(look)
"""


def test_mypy_knows_what_a_users_script_calls(tmp_path):
    """Skipped without mypy, which takes half a minute: a workflow has it."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(SCRIPT)
    (tmp_path / "warplens").symlink_to(HOME)
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    before, _ = os.getcwd(), os.chdir(tmp_path)
    try:
        report, *_ = api.run([*options, "user.py"])
    finally:
        os.chdir(before)
    lines = [int(line.split(":")[1]) for line in report.splitlines() if ": error: " in line]
    wrong = [n for n, line in enumerate(SCRIPT.splitlines(), 1) if line and line[0] in "ort"]
    assert sorted(set(lines)) == wrong, report
