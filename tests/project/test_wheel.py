"""What `pip install rwkv-lessons` gives: the library, with torch and numpy and nothing else."""

import email
import importlib.metadata
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from functools import cache
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rwkv_lessons
from rwkv_lessons.lab.course.exercises import ROOT


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy: setuptools leaves files beside what it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in "pyproject.toml setup.py MANIFEST.in address.txt README.md LICENSE".split():
        shutil.copy(ROOT / name, source)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rwkv_lessons", source / "rwkv_lessons", ignore=leave)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", out, source)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def distributions_of(*names):
    """The names of these distributions, and of what they require without any extra."""
    found, queue = set(), [canonicalize_name(name) for name in names]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(canonicalize_name(requirement.name))
    return found


def foreign_modules():
    """Every module that is here and that torch and numpy do not bring."""
    brought = distributions_of("torch", "numpy")
    return {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if brought.isdisjoint(map(canonicalize_name, names)) and module != "rwkv_lessons"
    }


def run(installed, code):
    """`code` in a Python that has the installed wheel, torch, numpy, and what these require."""
    foreign = sorted(foreign_modules())
    assert {"numba", "jupyterlab", "pytest", "rich"} <= set(foreign)
    start = (
        "import sys\n"
        f"sys.path[:0] = {[str(installed), *site.getsitepackages()]!r}\n"
        f"sys.modules.update(dict.fromkeys({foreign!r}))  # importing these fails\n"
    )
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_wheel_has_the_library_and_neither_course_nor_records(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"rwkv_lessons/__init__.py", "rwkv_lessons/wkv6/chunked/forward.py"} <= set(names)
    kinds = {Path(name).suffix for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert kinds == {".py", ".pyi", ".typed"}
    assert not [name for name in names if name.startswith("rwkv_lessons/lab/")]
    assert [name for name in names if name.endswith("/LICENSE")]


def test_what_a_package_index_shows_is_complete(wheel):
    (name,) = (x for x in zipfile.ZipFile(wheel).namelist() if x.endswith(".dist-info/METADATA"))
    metadata = zipfile.ZipFile(wheel).read(name)
    Metadata.from_email(metadata, validate=True)  # as `twine check --strict`, which a release runs
    about = email.message_from_bytes(metadata)
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().startswith("# RWKV Lessons")
    assert about["Version"] == rwkv_lessons.__version__
    assert about["Author"] and about["Keywords"] and len(about["Summary"]) <= 160
    assert "Typing :: Typed" in about.get_all("Classifier")


def test_the_source_distribution_can_be_tested_and_read(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("needs the list of files that git has")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    assert len(files) > 500
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(ROOT / name, tmp_path / "source" / name)
    build = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        **{"cwd": tmp_path / "source", "capture_output": True, "text": True},
    )
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    missing = {name for name in files if not name.startswith(".")} - there
    assert missing == set()


def test_the_wheel_asks_for_torch_and_numpy_alone(installed):
    (found,) = importlib.metadata.distributions(path=[str(installed)])
    asked = [Requirement(text) for text in found.requires]
    assert {r.name for r in asked if r.marker is None} == {"torch", "numpy"}
    assert all("extra ==" in str(r.marker) for r in asked if r.marker)
    bounds = {part.operator for r in asked if r.marker is None for part in r.specifier}
    assert bounds == {">="}  # newer ones are welcome


OPERATIONS = """
from pathlib import Path
import torch
import rwkv_lessons
from rwkv_lessons.interop.fla import chunk_rwkv6
from rwkv_lessons.mla import mla, mla_reference
from rwkv_lessons.wkv5 import wkv5, wkv5_reference
from rwkv_lessons.interop.flash_rwkv import rwkv5_cuda_linear_attention
from rwkv_lessons.interop.transformers_rwkv import rwkv6_linear_attention
from rwkv_lessons.wkv6 import METHODS, wkv6, wkv6_reference, wkv6_step

assert Path(rwkv_lessons.__file__).is_relative_to({installed!r}), rwkv_lessons.__file__

def same(operation, reference, *given, **options):
    results = []
    for f in (operation, reference):
        leaves = [x.clone().requires_grad_() for x in given]
        outputs = f(*leaves, **options)
        sum(x.square().sum() for x in outputs).backward()
        results.append([*outputs, *(x.grad for x in leaves)])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)  # of float64: 1e-7

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
B, T, H, N = 2, 20, 3, 8
r, k, v = torch.randn(3, B, T, H, N)
w, u, s0 = -torch.rand(B, T, H, N), torch.randn(H, N), torch.randn(B, H, N, N)
same(wkv5, wkv5_reference, r, k, v, w[0, 0], u, s0)
same(wkv6, wkv6_reference, r, k, v, w, u, s0)
same(
    lambda *x: chunk_rwkv6(*x[:5], scale=1.0, initial_state=x[5], output_final_state=True),
    wkv6_reference, r, k, v, w, u, s0,
)
flat = [x.flatten(2) for x in (r, k, v)]
out, _ = rwkv5_cuda_linear_attention(*flat, torch.log(-w[0, 0]), u, s0.transpose(2, 3))
torch.testing.assert_close(out, wkv5(r, k, v, w[0, 0], u, s0)[0].flatten(2))
out, _ = rwkv6_linear_attention(False, *flat, torch.log(-w).flatten(2), u, s0)
torch.testing.assert_close(out.double(), wkv6(r, k, v, w, u, s0)[0], rtol=1e-4, atol=1e-4)
wkv6_step(*(x[:, :1] for x in (r, k, v, w)), u, s0)
for M in (1, 120):
    q, q_rope = torch.randn(B, M, H, 16), torch.randn(B, M, H, 4)
    latent, k_rope = torch.randn(B, 130, 32), torch.randn(B, 130, 4)
    w_k, w_v = torch.randn(2, H, 16, 32)
    same(mla, mla_reference, q, q_rope, latent, k_rope, w_k, w_v, scale=0.2)
assert "cuda" not in METHODS
"""


def test_every_operation_runs_on_a_cpu_with_torch_and_numpy_alone(installed):
    done = run(installed, OPERATIONS.format(installed=str(installed)))
    assert done.returncode == 0, done.stderr


def test_the_lessons_command_says_where_the_course_is(installed):
    done = run(installed, "from rwkv_lessons.course import main\nsys.exit(main())")
    assert (done.returncode, done.stdout) == (2, "")
    assert "only the library is installed here" in done.stderr and "make lab" in done.stderr


LIGHT = """
import time, torch
from torch.nn import functional
began = time.process_time()
import rwkv_lessons.mla, rwkv_lessons.wkv5, rwkv_lessons.wkv6
import rwkv_lessons.interop.fla, rwkv_lessons.interop.flash_rwkv
seconds = time.process_time() - began
from rwkv_lessons.mla import mla
from rwkv_lessons.wkv5 import wkv5
from rwkv_lessons.wkv6 import method_for, wkv6, wkv6_step
r, k, v = torch.randn(3, 1, 9, 2, 4)
w, u, s = -torch.rand(1, 9, 2, 4), torch.randn(2, 4), torch.zeros(1, 2, 4, 4)
wkv5(r, k, v, w[0, 0], u)
wkv6(r, k, v, w, u)
wkv6_step(*(x[:, :1] for x in (r, k, v, w)), u, s)
method_for("cpu", torch.float32, 9, 2, 4, True)
for M in (1, 120):
    q, q_rope, latent, k_rope = (torch.randn(1, M, *n) for n in ((2, 4), (2, 2), (8,), (2,)))
    mla(q, q_rope, latent, k_rope, torch.randn(2, 4, 8), torch.randn(2, 5, 8), scale=0.5)
import sys
assert not {"triton", "numba", "torch._dynamo"} & set(sys.modules)
assert seconds < 0.2, f"{seconds:.2f} s"  # 0.04 here; each of these three takes more
from rwkv_lessons.wkv6 import wkv6_chunked
"""


def test_nothing_heavy_is_imported_before_it_is_needed():
    run = [sys.executable, "-c", LIGHT]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_method_is_imported_when_it_is_asked_for():
    pytest.importorskip("triton")
    pytest.importorskip("numba_cuda")
    from rwkv_lessons import mla, wkv5, wkv6
    from rwkv_lessons.wkv6.recurrent import forward

    assert wkv6.METHODS["recurrent"] is wkv6.wkv6_recurrent is forward.wkv6_recurrent
    assert wkv5.METHODS["cuda"] is wkv5.wkv5_cuda and mla.METHODS["decode"] is mla.mla_decode
    for package in (mla, wkv5, wkv6):
        assert all(hasattr(package, name) for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing


@pytest.fixture(scope="module")
def beside_torch(installed, tmp_path_factory):
    """without → a Python whose site-packages has the wheel, and all that is here but `without`.

    The library stands beside torch there, as where people install it, and not in a repository.
    """

    def make(*without):
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for found in [*installed.iterdir(), *map(Path, every_package())]:
            there = packages / found.name
            if not (there.exists() or found.name.startswith(("rwkv_lessons", *without))):
                there.symlink_to(found)
        shutil.copytree(installed / "rwkv_lessons", packages / "rwkv_lessons")
        return folder / "bin" / "python"

    return cache(make)


def every_package():
    """What stands in this environment's folders of packages, if it is not this project."""
    for folder in map(Path, site.getsitepackages()):
        yield from (x for x in folder.iterdir() if "rwkv" not in x.name and x.suffix != ".pth")


WITHOUT = {
    "all": (),
    "without triton": ("triton",),
    "without numba": ("numba", "_numba", "llvmlite"),
    "bare": ("triton", "numba", "_numba", "llvmlite", "transformers", "rich", "greenlet"),
}


def said_by(python, *arguments):
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments],
        **{"capture_output": True, "text": True, "timeout": 300, "cwd": python.parent},
        env=outside,
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("packages", ["all", "bare"])
def test_verify_runs_beside_torch(beside_torch, packages):
    python = beside_torch(*WITHOUT[packages])
    done = said_by(
        python, "-m", "rwkv_lessons.verify", "--only", "mla / mla / float32 / tiny / plain"
    )
    assert done.returncode == 0 and "0 wrong" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("packages", ["all", "bare"])
def test_every_example_of_the_docs_runs_beside_torch(beside_torch, packages):
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.S)
    foreign = "transformers", "patch_fla"  # they download a model, or need another package
    ours = [x for x in snippets if not any(name in x for name in foreign)]
    assert len(ours) == len(snippets) - 2 >= 7
    code = "\n".join(ours)
    done = said_by(beside_torch(*WITHOUT[packages]), "-W", "error::DeprecationWarning", "-c", code)
    assert done.returncode == 0, done.stderr


MISSING = {
    "wkv5.wkv5_cuda": "numba",
    "wkv6.wkv6_cuda": "numba",
    "wkv6.wkv6_chunked": "triton",
    "wkv6.wkv6_recurrent": "triton",
    "wkv7.wkv7_chunked": "triton",
    "timex.timex_cuda": "numba",
    "timex.timex_toeplitz": "triton",
}
IMPORTS = """
import importlib
for name in ("wkv5", "wkv6", "wkv7", "timex", "mla", "distributed", "models", "interop.fla"):
    exec(f"from rwkv_lessons.{name} import *")
for path in %s:
    module, _, name = path.partition(".")
    try:
        getattr(importlib.import_module(f"rwkv_lessons.{module}"), name)
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.parametrize("package", ["triton", "numba"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(beside_torch, package):
    python = beside_torch(*WITHOUT[f"without {package}"])
    done = said_by(python, "-c", IMPORTS % list(MISSING))
    assert done.returncode == 0, done.stderr
    said = {line.split(" needs ")[0]: line for line in done.stdout.splitlines()}
    wanted = {path.split(".")[1] for path, needs in MISSING.items() if needs == package}
    assert set(said) == wanted
    for line in said.values():
        assert f"needs {package}, which is not installed: pip install " in line


def test_what_a_wheel_has_not_is_said_to_be_in_the_repository(beside_torch):
    python = beside_torch(*WITHOUT["all"])
    for command, status in (("report", 1), ("course", 2)):
        done = said_by(python, "-m", *f"rwkv_lessons.{command}".split())
        assert done.returncode == status and "in the repository" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "command, where",
    [
        ("wkv6 --quick", "pip install"),
        ("mla-prefill --quick", "pip install"),
        ("matrix", "it is in the repository"),  # warplens: the table that it writes is there, too
    ],
)
def test_the_bench_names_the_package_that_it_needs(beside_torch, command, where):
    done = said_by(beside_torch(*WITHOUT["bare"]), "-m", "rwkv_lessons.bench", *command.split())
    assert done.returncode == 1 and f"is not installed: {where}" in done.stderr, done.stderr
