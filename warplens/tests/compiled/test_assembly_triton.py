"""Machine code of Triton kernels, also where the kernels were made for the interpreter."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from warplens.architectures import ARCHITECTURES
from warplens.compiled import from_triton
from warplens.compiled.assembly import CompileError, assembly, can_compile, what_is_missing

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

SCALE = tl.constexpr(3.0)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, scaled(tl.load(x + o, o < n)), o < n)


@triton.jit
def total(x, y, BLOCK: tl.constexpr):
    b_x = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y, tl.sum(b_x) + b_x.max() + tl.cdiv(BLOCK, 3))


@triton.jit
def product(x, y, z, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(z + o, tl.dot(tl.load(x + o), tl.load(y + o)))


@triton.jit
def wrong(x, y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o) + tl.arange(0, 3))


pytestmark = pytest.mark.skipif(not can_compile(scale), reason=str(what_is_missing(scale)))


def test_a_multiple_of_16_makes_wide_loads():
    # The mask `o < n` allows four at once only where n is known to be a multiple.
    narrow = assembly(scale, "*fp32", "*fp32", "i32", BLOCK=1024)
    wide = assembly(scale, "*fp32", "*fp32", "i32:16", BLOCK=1024)
    assert (narrow.count("LDG.E.128"), narrow.count("LDG")) == (0, 8)
    assert (wide.count("LDG.E.128"), wide.count("LDG")) == (2, 2)
    unaligned = assembly(scale, "*fp32:4", "*fp32", "i32:16", BLOCK=1024)
    assert (unaligned.count("LDG.E.128"), unaligned.count("STG.E.128")) == (0, 2)


def test_tensors_and_numbers_as_a_launch_sees_them():
    x = torch.zeros(2048)
    same = assembly(scale, "*fp32", "*fp32", "i32:16", BLOCK=1024)
    assert assembly(scale, x, x, 2048, 1024).sass == same.sass
    off_by_one = assembly(scale, x[1:], x, 2048, BLOCK=1024)
    assert (off_by_one.count("LDG.E.128"), off_by_one.count("STG.E.128")) == (0, 2)


def test_options_and_constants():
    wide = assembly(scale, "*fp32", "*fp32", "i32", BLOCK=1024)
    many = assembly(scale, "*fp32", "*fp32", "i32", BLOCK=1024, num_warps=8)
    assert many.count("LDG") == wide.count("LDG") / 2
    scaled_by_5 = assembly(scale, "*fp32", "*fp32", "i32", constants={"BLOCK": 1024, "SCALE": 5.0})
    assert any(" 3" in i for i in wide.sass.splitlines() if "FMUL" in i)
    assert not any(" 3" in i for i in scaled_by_5.sass.splitlines() if "FMUL" in i)
    assert any(" 5" in i for i in scaled_by_5.sass.splitlines() if "FMUL" in i)


def test_dot_is_tensor_cores_of_each_architecture():
    types = {"x": "*fp16", "y": "*fp16", "z": "*fp32", "N": 64}
    by_arch = {arch: assembly(product, arch=arch, **types) for arch in ARCHITECTURES}
    assert by_arch["sm_80"].count("HMMA") > 0 and by_arch["sm_80"].count("HGMMA") == 0
    assert by_arch["sm_90"].count("HGMMA") > 0
    assert by_arch["sm_100"].count("UTCHMMA") > 0
    for code in by_arch.values():
        assert code.shared_bytes >= 2 * 64 * 64 and code.spill_stores == 0 and code.registers > 16
        assert "tensor cores" in code.summary()


def test_by_line():
    code = assembly(scale, "*fp32", "*fp32", "i32:16", BLOCK=1024)
    with open(__file__) as file:
        at = next(n for n, line in enumerate(file, 1) if "tl.store(y + o, scaled" in line)
    ops = [i.split()[0] for i in code.by_line()[at]]
    assert "STG.E.128" in " ".join(code.by_line()[at]) and ops
    assert [text for _, text in code.listing()] == code.sass.splitlines()


TWIN = """import triton
import triton.language as tl


@triton.jit
def {name}(x, y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o) + 1)
"""


def in_this_process(monkeypatch):
    """A compilation whose parts are exchanged, or looked at, has to run here."""
    here = sys.modules[assembly.__module__]
    monkeypatch.setattr(here, "apart", lambda build, *arguments: build(*arguments))


def test_a_twin_in_another_file_is_compiled_once_and_keeps_its_lines(tmp_path, monkeypatch):
    """As where a repository is checked out twice, or a notebook is run again."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    compiled, assemble = [], from_triton._compiled
    monkeypatch.setattr(from_triton, "_compiled", lambda *x: compiled.append(x[3]) or assemble(*x))
    in_this_process(monkeypatch)
    lines = []
    for folder in ("one", "other"):
        monkeypatch.setattr(sys.modules[assembly.__module__], "_compiled", {})  # another process
        file = tmp_path / folder / "twin.py"
        file.parent.mkdir()
        file.write_text(TWIN.format(name="plus_one"), encoding="utf-8")
        module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("t", file))
        module.__spec__.loader.exec_module(module)
        lines.append(assembly(module.plus_one, "*fp32", "*fp32", BLOCK=1024).by_line())
    assert len(set(compiled)) == 2 and lines[0] == lines[1] and 8 in lines[0]
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 1


@pytest.mark.parametrize("log_holds", ["nothing", "a clock"])
def test_what_a_check_prints_meanwhile_is_not_taken_for_the_assemblers_words(
    log_holds, tmp_path, monkeypatch
):
    """The kernel is in the cache, from elsewhere, and the clock of a long check is running."""
    memory = sys.modules[assembly.__module__]
    in_this_process(monkeypatch)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(memory, "_compiled", {})
    registers = assembly(scale, "*fp32", "*fp32", "i32", BLOCK=512).registers
    (log_file,) = tmp_path.rglob(from_triton.KEPT)
    if log_holds == "nothing":
        log_file.unlink()
    else:
        log_file.write_text(json.dumps(["\r… a check, 5 s", "file"]), encoding="utf-8")
    compile = triton.compile
    monkeypatch.setattr(triton, "compile", lambda *x, **y: print("\r… 5 s") or compile(*x, **y))
    monkeypatch.setattr(memory, "_compiled", {})  # another process
    assert assembly(scale, "*fp32", "*fp32", "i32", BLOCK=512).registers == registers > 0


def test_errors():
    with pytest.raises(CompileError, match=r"(?s)wrong does not compile.*line \d+: tl.store") as e:
        assembly(wrong, "*fp32", "*fp32", BLOCK=64)
    assert len(str(e.value).splitlines()) <= 2
    with pytest.raises(TypeError, match="arguments missing: n, BLOCK"):
        assembly(scale, "*fp32", "*fp32")
    with pytest.raises(TypeError, match="'warps' is neither"):
        assembly(scale, "*fp32", "*fp32", "i32", BLOCK=64, warps=4)


def test_kernels_made_for_the_interpreter_compile_to_the_same_code():
    script = (
        "import test_assembly_triton as t\n"
        "print(type(t.scale).__name__, type(t.tl.sum).__name__)\n"
        "print(t.assembly(t.scale, '*fp32', '*fp32', 'i32', BLOCK=1024).sass)\n"
        "print(t.assembly(t.total, '*fp32', '*fp32', BLOCK=1024).sass)\n"
        "print(type(t.tl.sum).__name__)"
    )
    here = os.path.dirname(__file__)
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)]),
    }
    command = [sys.executable, "-c", script]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    first, *code, last = completed.stdout.splitlines()
    assert first.split() == ["InterpretedFunction"] * 2 and last == "InterpretedFunction"
    here = [
        assembly(scale, "*fp32", "*fp32", "i32", BLOCK=1024).sass,
        assembly(total, "*fp32", "*fp32", BLOCK=1024).sass,
    ]
    assert code == "\n".join(here).splitlines()
