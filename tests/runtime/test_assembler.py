"""Which ptxas assembles the library's Triton kernels, and that nobody else's are touched."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from rwkv_lessons.operations import OPERATIONS  # noqa: E402
from rwkv_lessons.runtime import assembler as choosing  # noqa: E402
from rwkv_lessons.runtime.assembler import Assembler, WrongAssembler, assembler  # noqa: E402
from rwkv_lessons.runtime.compile_triton import assemble, assembled, own_target  # noqa: E402
from warplens.compiled import from_triton as cubin_triton
from warplens.compiled.functions import plain

SM_90 = GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    monkeypatch.delenv(choosing.CHOICE, raising=False)
    assembler.cache_clear()
    yield
    assembler.cache_clear()


def pretend(tmp_path, version, name="ptxas"):
    """A program that says it is that ptxas."""
    file = tmp_path / name
    file.write_text(f'#!/bin/sh\necho "ptxas: NVIDIA\nCuda, release {version[:4]}, V{version}"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_the_chosen_one_is_newer_than_those_known_to_be_wrong():
    found = assembler()
    assert not found.known_wrong and not found.distrusted
    said = subprocess.run([found.path, "--version"], capture_output=True, text=True).stdout
    assert found.version in said


def test_triton_is_believed_where_it_takes_a_newer_one_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_PTXAS_PATH", path := pretend(tmp_path, "13.9.1"))
    assert assembler() == Assembler(path, "13.9.1", "Triton's own")


@pytest.mark.parametrize("version", ["12.8.93", "13.9.1"])
def test_a_variable_names_another_whatever_its_version(monkeypatch, tmp_path, version):
    monkeypatch.setenv(choosing.CHOICE, path := pretend(tmp_path, version))
    found = assembler()
    assert (found.path, found.version) == (path, version)
    assert found.known_wrong == (version == "12.8.93")
    assert not found.distrusted  # who asks for it wants to see what it does


def test_the_variable_can_ask_for_what_triton_takes(monkeypatch):
    monkeypatch.setenv(choosing.CHOICE, "default")
    assert assembler().path == choosing.triton_assembler().path


@pytest.mark.parametrize("name", ["/nowhere/ptxas", "/bin/true"])
def test_what_is_not_a_ptxas_is_refused(monkeypatch, name):
    monkeypatch.setenv(choosing.CHOICE, name)
    with pytest.raises(ValueError, match=f"RWKV_LESSONS_PTXAS is '{name}', which is not a ptxas"):
        assembler()


def test_with_none_but_a_wrong_one_there_is_one_warning(monkeypatch, tmp_path):
    old = Assembler(pretend(tmp_path, "12.8.93"), "12.8.93", "Triton's own")
    monkeypatch.setattr(choosing, "candidates", lambda capability: iter([old]))
    monkeypatch.setattr(choosing, "triton_assembler", lambda capability: old)
    with pytest.warns(WrongAssembler, match=r"12\.8\.93 .* nvidia-cuda-nvcc-cu12==12\.9"):
        assert assembler().distrusted
    assert assembler() is old  # a second warning would be an error here


def test_what_the_driver_cannot_load_is_passed_over(monkeypatch, tmp_path):
    old, new = (Assembler(pretend(tmp_path, v, v), v, "a test") for v in ("12.9.86", "13.1.80"))
    monkeypatch.setattr(choosing, "candidates", lambda capability: iter([new, old]))
    monkeypatch.setattr(choosing, "_driver_cuda", lambda: 12)
    assert assembler() is old
    assembler.cache_clear()
    monkeypatch.setattr(choosing, "_driver_cuda", lambda: 13)
    assert assembler() is new


def test_a_program_in_the_working_directory_is_never_run(monkeypatch, tmp_path):
    """Not as a wheel on sys.path, and not by a relative path."""
    folder = tmp_path / "nvidia" / "x" / "bin"
    folder.mkdir(parents=True)
    pretend(folder, "13.9.1")
    monkeypatch.chdir(tmp_path)
    for entry in ("", ".", str(tmp_path)):
        monkeypatch.syspath_prepend(entry)
    monkeypatch.setenv("CUDA_HOME", "nvidia/x")
    monkeypatch.setenv("PATH", "nvidia/x/bin", prepend=":")
    assert "13.9.1" not in [found.version for found in choosing.candidates()]


def test_a_program_that_does_not_answer_is_no_ptxas(monkeypatch, tmp_path):
    file = tmp_path / "ptxas"
    file.write_text("#!/bin/sh\nexec sleep 30\n")
    file.chmod(0o755)
    monkeypatch.setattr(choosing, "SECONDS_TO_ANSWER", 0.1)
    assert choosing._look_at(str(file), "a test") is None


@pytest.mark.usefixtures("on_an_h200")
def test_float32_avoids_the_method_that_a_wrong_one_breaks(monkeypatch):
    import torch

    from rwkv_lessons import wkv6

    asked = {"T": 4096, "heads": 64, "size": 64, "gradients": True}
    assert wkv6.method_for("cuda", torch.bfloat16, **asked) == "chunked"
    for distrusted, method in ((False, "chunked"), (True, "cuda")):
        monkeypatch.setattr(wkv6, "distrusted", lambda capability, answer=distrusted: answer)
        assert wkv6.method_for("cuda", torch.float32, **asked) == method


def double(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * 2)


def compile(kernel, target):
    source = ASTSource(kernel, {"x": "*fp32", "N": "constexpr"}, {"N": 128})
    return triton.compile(source, target=target)


def test_the_assembler_is_part_of_the_cache_key(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = triton.JITFunction(double)
    ours, theirs = compile(kernel, own_target(SM_90)), compile(kernel, SM_90)
    assert ours.hash != theirs.hash
    monkeypatch.setenv(choosing.CHOICE, "default")
    assembler.cache_clear()
    default = compile(kernel, own_target(SM_90))
    assert len({ours.hash, theirs.hash, default.hash}) == 3


def test_the_ptx_is_of_a_version_that_the_assembler_knows(monkeypatch, tmp_path):
    """Also if Triton is told of a newer one after ours was chosen, as FLA does when imported."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    chosen = assembler()
    old = choosing.triton_assembler()
    monkeypatch.setattr("rwkv_lessons.runtime.compile_triton.assembler", lambda capability: old)
    monkeypatch.setenv("TRITON_PTXAS_PATH", chosen.path)
    assert chosen.release > old.release
    made = compile(triton.JITFunction(double), own_target(SM_90))
    assert ".version 8.7" in made.asm["ptx"] and made.asm["cubin"]  # 12.8 knows 8.7


def test_torch_compile_does_not_look_into_the_choice():
    import torch

    def f(x):
        return x + 1 if choosing.distrusted((9, 0)) else x - 1

    assert torch.compile(f, backend="eager", fullgraph=True)(torch.zeros(1)).item() == -1


def test_kernels_of_others_compile_as_they_did(monkeypatch, tmp_path):
    """With an assembler that does nothing, only what is decorated fails."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(choosing.CHOICE, pretend(tmp_path, "13.9.1"))
    kernel = triton.JITFunction(double)
    assert compile(kernel, SM_90).asm["cubin"]
    with pytest.raises(FileNotFoundError, match="cubin"):
        compile(kernel, own_target(SM_90))


def test_a_decorated_kernel_asks_for_its_own_target(monkeypatch):
    asked = []
    pretended = SimpleNamespace(get_current_target=lambda: SM_90)
    monkeypatch.setattr(triton.runtime.driver, "_active", pretended)
    monkeypatch.setattr("triton.compiler.compile", lambda src, target, **_: asked.append(target))
    plain, decorated = triton.JITFunction(double), assembled(triton.JITFunction(double))
    for kernel in (plain, decorated):
        _ = kernel.device_caches[0]
        kernel.compile("source", target=SM_90, options={})
    assert asked == [SM_90, own_target(SM_90)]


def test_every_kernel_that_the_library_launches_is_decorated():
    root = Path(choosing.__file__).parents[1]
    found = 0
    packages = {operation.package for operation in OPERATIONS.values()}
    for file in sorted(file for name in packages for file in root.glob(f"{name}/**/*.py")):
        lines = file.read_text().splitlines()
        for n, line in enumerate(lines):
            launched = lines[n - 1].startswith(("@triton.jit(", "@gluon.jit("))  # with options
            if launched or (lines[n - 1].endswith(".jit") and "_kernel(" in line):
                assert lines[n - 2] == "@assembled", f"{file.name}: {line}"
                found += 1
    assert found >= 20


def test_ptxas_says_what_it_did_not_like():
    options = triton.backends.nvidia.compiler.CUDAOptions()
    with pytest.raises(triton.runtime.errors.PTXASError, match="ptxas .*error"):
        assemble(".version 8.0\nnonsense", options, 90, assembler())


def test_options_of_the_shell_reach_ptxas_and_are_part_of_the_cache_key():
    """`PTXAS_OPTIONS=…`, which Triton reads when it is imported, in a process of its own."""
    code = (
        "from triton.backends.nvidia.compiler import CUDAOptions\n"
        "from rwkv_lessons.runtime.assembler import assembler\n"
        "from rwkv_lessons.runtime.compile_triton import assemble\n"
        "from rwkv_lessons.verify.machine import assembler as said\n"
        "print(said(), CUDAOptions().hash() != CUDAOptions(ptx_options=None).hash())\n"
        "assemble('.version 8.0\\nnonsense', CUDAOptions(), 90, assembler())\n"
    )
    with_option = os.environ | {"PTXAS_OPTIONS": "--regAllocOptLevel=2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=with_option, capture_output=True, text=True)
    assert done.stdout.strip() == f"{assembler().version} --regAllocOptLevel=2 True"
    assert " --regAllocOptLevel=2 --gpu-name=sm_90a" in done.stderr


def test_the_lab_shows_the_machine_code_that_is_launched():
    """A library kernel is assembled as its launch is, a lesson's by Triton's own ptxas."""
    import rwkv_lessons.lab  # noqa: F401  tells warplens the library's target
    from rwkv_lessons.wkv6.chunked.segments import wkv6_segments_kernel

    assert cubin_triton._target("sm_90", plain(wkv6_segments_kernel)) == own_target(SM_90)
    assert cubin_triton._target("sm_90", double) == SM_90
