"""One lock file fits pyproject.toml and serves everybody; and the doctor finds what is broken."""

import json
import re
import site
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from packaging.version import Version
from support.makefile import INSTALL, MAKEFILE

from rwkv_lessons.lab.commands import cli, doctor, lock
from rwkv_lessons.lab.course.exercises import ROOT
from warplens.programs import hook

EXTRAS = ("cuda", "lessons", "jupyter", "dev")
OF_WARPLENS = ("numba", "triton", "pictures")


def misfits(locked):
    """The requirements that no release in requirements.lock satisfies."""
    asked = lock.requirements(EXTRAS, OF_WARPLENS)
    return {r.name for r in asked if not (found := locked.get(r.name)) or found not in r.specifier}


@pytest.mark.derived("requirements.lock", "make lock")
def test_the_lock_has_every_requirement_in_its_range():
    assert set(lock.project()["optional-dependencies"]) == set(EXTRAS)
    of_warplens = lock.project(ROOT / "warplens")["optional-dependencies"]
    assert set(of_warplens) == {*OF_WARPLENS, "machine-code"}  # the course has Triton's nvdisasm
    assert misfits(lock.locked()) == set()


@pytest.mark.parametrize("name, release", [("numpy", "2.5.0"), ("numba", None), ("torch", "2.1")])
def test_a_release_out_of_range_or_missing_is_seen(name, release):
    locked = lock.locked()
    locked[name] = release and Version(release)
    assert misfits(locked) == {name}


def test_every_requirement_has_a_lower_bound():
    asked = lock.requirements(EXTRAS, OF_WARPLENS)
    bound = {r.name for r in asked if any(part.operator == ">=" for part in r.specifier)}
    assert {r.name for r in asked} == bound


def test_conda_and_make_install_the_same():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert " ".join(conda[-1]["pip"]) == INSTALL
    said = re.search(r"^LOCK \?= (.+)$", MAKEFILE, re.M)[1]
    ran = re.search(r"pip install \$\(LOCK\) (.+)$", MAKEFILE, re.M)[1]
    assert f"{said} {ran}".replace("'", "") == INSTALL


def test_no_file_names_a_place_to_download_from():
    """Whoever has an index of their own tells pip so, and not this repository."""
    files = [ROOT / name for name in ("pyproject.toml", "requirements.lock", "environment.yml")]
    files += [ROOT / "Makefile", *(ROOT / ".github").rglob("*.yml")]
    for file in files:
        assert not re.search(r"index-url|find-links|://", file.read_text()), file


def test_codespaces_call_a_target_that_exists():
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    command, target = settings["postCreateCommand"].split()
    assert command == "make"
    assert re.search(rf"^{target}:", MAKEFILE, re.M)


WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"
TRIED = [
    int(x) for x in re.findall(r'"3\.(\d+)"', re.search(r"python: \[.*\]", WORKFLOW.read_text())[0])
]


def found(look, level, **settings):
    return [f for f in doctor._safely(lambda: look(**settings)) if f.level == level]


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_a_python_that_is_too_old_or_has_no_wheels(version):
    (finding,) = found(doctor.python, doctor.PROBLEM, version=version)
    assert ".".join(map(str, version)) in finding.text and "PYTHON=" in finding.fix
    assert version[:2] not in [(3, x) for x in TRIED]


def test_every_python_that_is_tried_is_accepted():
    assert TRIED == [11, 12, 13, 14]
    for minor in TRIED:
        assert not found(doctor.python, doctor.PROBLEM, version=(3, minor, 0))


def test_missing_and_other_packages(monkeypatch):
    versions = {"greenlet": None, "rich": "13.0.0"}
    versions["torch"] = f"{lock.locked()['torch']}+cpu"
    here = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name, here(name)))
    (problem,) = found(doctor.packages, doctor.PROBLEM)
    (note,) = found(doctor.packages, doctor.NOTE)
    assert problem.text == "greenlet is not installed" and "make setup" in problem.fix
    assert note.fix == f'pip install "rich=={lock.locked()["rich"]}"'  # torch's CPU build is fine


def test_warplens_is_installed_from_this_repository(monkeypatch):
    def at(place):
        return lambda name: types.SimpleNamespace(origin=str(place / name / "__init__.py"))

    monkeypatch.setattr(doctor, "installed", {"warplens": "0.1.0"}.get)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", at(ROOT))
    assert "0.1.0" in found(doctor.warplens, doctor.OK)[0].text
    monkeypatch.setattr(doctor.importlib.util, "find_spec", at(Path("/elsewhere")))
    assert "/elsewhere/warplens" in found(doctor.warplens, doctor.PROBLEM)[0].text
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    (problem,) = found(doctor.warplens, doctor.PROBLEM)
    assert problem.text == "warplens is not installed" and doctor.LENS in problem.fix


def test_what_the_doctor_says_to_install_is_what_make_installs():
    install = doctor.INSTALL.removeprefix("pip install ").replace("'", "")
    assert install == INSTALL.replace(",dev]", "]")
    colab = next(x for x in (ROOT / "README.md").read_text().splitlines() if "!git clone" in x)
    ours = [x.replace(",jupyter]", "]") for x in install.split(" --editable ")[1:]]
    cells, tested = colab.replace("'", "").split(" numba-cuda[cu12]>=0.30.4 ")
    assert tested == "triton<3.8" and str(lock.locked()["triton"]).startswith("3.7.")
    cells = cells.split(" -e ")[1:]
    assert cells == [x.replace("[cuda,", "[") for x in ours]


def test_colab_keeps_what_it_runs_with():
    """What its pip list of 2026-08-19 has (googlecolab/backend-info): the cell replaces none."""
    kept = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.1.3", "nbformat": "5.11.1"}
    wanted = lock.requirements(["lessons"], ["numba", "triton", "pictures"])
    for name, version in kept.items():
        assert all(r.specifier.contains(version) for r in wanted if r.name == name), name
    assert not {"ipykernel", "jupyter-client", "jupyterlab", "nbclient"} & {r.name for r in wanted}
    assert lock.project()["requires-python"] == ">=3.11"  # Colab has 3.13


@pytest.mark.parametrize("numpy, problems", [("2.5.0", 1), ("3.0.0rc1", 1), ("2.4.6", 0)])
def test_numpy_too_new_for_numba(monkeypatch, numpy, problems):
    versions = {"numpy": numpy, "numba-cuda": "0.30.4"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    findings = found(doctor.numpy_for_numba, doctor.PROBLEM)
    assert len(findings) == problems
    assert all(f.fix == f'pip install "numpy=={lock.locked()["numpy"]}"' for f in findings)


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


def test_warplens_without_its_hook(monkeypatch):
    monkeypatch.setenv("WARPLENS", "1")
    monkeypatch.setattr(hook, "STARTED", [])
    (finding,) = found(doctor.switches, doctor.NOTE)
    assert "WARPLENS is set and has no effect" in finding.text
    monkeypatch.setattr(hook, "STARTED", [True])
    assert not found(doctor.switches, doctor.NOTE)


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
    assert "✗ numba import: AttributeError" in said and "1 to fix" in said


def test_notes_alone_do_not_fail(monkeypatch, capsys):
    note = doctor.Diagnosis(doctor.NOTE, "no [cu13] Triton", "a Codespace")
    monkeypatch.setattr(doctor, "LOOKS", (lambda: [note],))
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\n· no [cu13] Triton\n  → a Codespace\nThe lessons run here.\n")


MACOS = """
import sys
# Without site no .pth: numba finds its own numba.cuda.
sys.path[:0] = [{root!r}, *{packages!r}]
sys.modules.update(dict.fromkeys(["triton", "cuda", "numba_cuda"]))  # importing these fails
from numba import cuda
assert cuda.implementation == "Built-in"
from rwkv_lessons.lab import setup
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
setup()
result = evaluate("05_float4.kernel", exercises.load("05_float4.kernel").reference)
print(result)
assert result.passed
verdicts = [row.verdict for row in result.rows if row.kind == "machine code"]
assert set(verdicts) == {{"not available here"}}
"""


def test_lessons_run_without_numba_cuda_and_triton():
    """As on macOS, where neither can be installed."""
    code = MACOS.format(root=str(ROOT), packages=site.getsitepackages())
    settings = {"capture_output": True, "text": True, "timeout": 300}
    run = subprocess.run([sys.executable, "-S", "-c", code], **settings)
    assert run.returncode == 0, run.stdout + run.stderr
