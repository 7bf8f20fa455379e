"""One list of pins: environment.yml repeats pyproject.toml; and the doctor finds what is broken."""

import json
import re
import site
import subprocess
import sys
import types

import pytest

from rwkv_lessons.lab import cli, doctor
from rwkv_lessons.lab.exercises import ROOT


def pip_section(text):
    """What environment.yml gives to pip, in order, without the project itself."""
    lines = re.findall(r"^ {6}- (.+)$", text, re.M)
    return [line for line in lines if line != "--editable ."]


@pytest.fixture
def environment():
    return (ROOT / "environment.yml").read_text()


def test_environment_repeats_the_pins(environment):
    assert pip_section(environment) == doctor.pins()
    assert "      - --editable .\n" in environment


@pytest.mark.parametrize("change", [("numpy==2.4.6", "numpy==2.5.0"), ("      - numba==", "#")])
def test_a_changed_or_missing_pin_is_seen(environment, change):
    assert change[0] in environment
    assert pip_section(environment.replace(*change)) != doctor.pins()


def test_every_pin_is_exact():
    assert [pin for pin in doctor.pins() if "==" not in pin] == []


def test_codespaces_call_a_target_that_exists():
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    command, target = settings["postCreateCommand"].split()
    assert command == "make"
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def found(look, level, **settings):
    return [f for f in doctor._safely(lambda: look(**settings)) if f.level == level]


def test_old_python():
    (finding,) = found(doctor.python, doctor.PROBLEM, version=(3, 10, 4))
    assert "3.10.4" in finding.text and "PYTHON=" in finding.fix


def test_missing_and_other_packages(monkeypatch):
    versions = {"greenlet": None, "rich": "13.0.0", "torch": "2.13.0+cpu"}
    here = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name, here(name)))
    (problem,) = found(doctor.packages, doctor.PROBLEM)
    (note,) = found(doctor.packages, doctor.NOTE)
    assert problem.text == "greenlet is not installed" and "make setup" in problem.fix
    assert (
        note.fix == 'pip install "rich==15.0.0"'
    )  # and the CPU build of torch is no other version


@pytest.mark.parametrize("numpy, problems", [("2.5.0", 1), ("3.0.0rc1", 1), ("2.4.6", 0)])
def test_numpy_too_new_for_numba(monkeypatch, numpy, problems):
    versions = {"numpy": numpy, "numba-cuda": "0.30.4"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    findings = found(doctor.numpy_for_numba, doctor.PROBLEM)
    assert len(findings) == problems
    assert all(finding.fix == 'pip install "numpy==2.4.6"' for finding in findings)


def test_no_triton(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    assert found(doctor.triton, doctor.PROBLEM)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not found(doctor.triton, doctor.PROBLEM)
    assert "WSL" in found(doctor.triton, doctor.NOTE)[0].fix


def test_simulation_left_on(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    (finding,) = found(doctor.switches, doctor.PROBLEM)
    assert finding.fix == "unset NUMBA_ENABLE_CUDASIM"


def broken_torch(cuda):
    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: False),
        version=types.SimpleNamespace(cuda=cuda),
        __version__="2.13.0",
    )


@pytest.mark.parametrize("cuda, word", [(None, "CPU build"), ("13.0", "CUDA 13.0")])
def test_a_gpu_that_torch_cannot_use(monkeypatch, cuda, word):
    monkeypatch.setattr(doctor, "_gpu_listed", lambda: "NVIDIA X, 550.1")
    monkeypatch.setattr(doctor.importlib, "import_module", lambda name: broken_torch(cuda))
    (finding,) = found(doctor.gpu, doctor.NOTE)
    assert word in finding.text and "550.1" in finding.text and finding.fix


def test_a_kernel_of_another_python(monkeypatch):
    from jupyter_client import kernelspec

    spec = types.SimpleNamespace(argv=["/elsewhere/python"])
    monkeypatch.setattr(kernelspec.KernelSpecManager, "get_kernel_spec", lambda *_: spec)
    (finding,) = found(doctor.kernel, doctor.PROBLEM)
    assert "/elsewhere/python" in finding.text and "ipykernel install" in finding.fix


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=2e8))
    assert "0.2 GB" in found(doctor.disk, doctor.PROBLEM)[0].text


def test_a_look_that_breaks_is_a_finding(monkeypatch, capsys):
    def numba_import():
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    monkeypatch.setattr(doctor, "LOOKS", (doctor.python, numba_import))
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "✗ numba import: AttributeError" in said and "1 to mend" in said


def test_notes_alone_do_not_fail(monkeypatch, capsys):
    note = doctor.Finding(doctor.NOTE, "no [cu13] Triton", "a Codespace")
    monkeypatch.setattr(doctor, "LOOKS", (lambda: [note],))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "· no [cu13] Triton\n  → a Codespace\nThe lessons run here.\n"


MACOS = """
import sys
sys.path[:0] = [{root!r}, *{packages!r}]  # without site no .pth: numba finds its own numba.cuda
sys.modules.update(dict.fromkeys(["triton", "cuda", "numba_cuda"]))  # importing these fails
from numba import cuda
assert cuda.implementation == "Built-in"
from rwkv_lessons.lab import exercises, setup
from rwkv_lessons.lab.check import evaluate
setup()
kernels = [id for id in exercises.ids() if id[:2] in ("04", "05")]
results = [evaluate(id, exercises.load(id).reference) for id in kernels]
print(*results)
assert results and all(result.passed for result in results)
verdicts = [row.verdict for result in results for row in result.rows if row.kind == "machine code"]
assert set(verdicts) == {{"not available here"}}
"""


def test_lessons_run_without_numba_cuda_and_triton():
    """As on macOS, where neither can be installed."""
    code = MACOS.format(root=str(ROOT), packages=site.getsitepackages())
    settings = {"capture_output": True, "text": True, "timeout": 120}
    run = subprocess.run([sys.executable, "-S", "-c", code], **settings)
    assert run.returncode == 0, run.stdout + run.stderr
