"""The first line of a notebook says what this machine can do, and no more."""

import os

from rwkv_lessons.lab.course import modes
from warplens.compiled import assembly


def test_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(assembly, "what_is_missing", lambda: None)
    said = modes.describe("NVIDIA H200")
    assert said.startswith("NVIDIA H200: kernels run on it") and "sm_90" in said


def test_without_a_gpu_and_without_tools_it_says_both(monkeypatch):
    monkeypatch.setattr(assembly, "what_is_missing", lambda: "numba-cuda is not installed")
    monkeypatch.setattr(modes, "has_triton", lambda: False)
    said = modes.describe(None)
    assert said.startswith("No GPU") and "no machine code (numba-cuda is not installed)" in said
    assert "no Triton" in said and "times from the record" in said


def test_setup_turns_the_interpreter_on_only_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(modes, "gpu_name", lambda: "NVIDIA H200")
    modes.setup()
    assert os.environ["TRITON_INTERPRET"] == "0"
    monkeypatch.setattr(modes, "gpu_name", lambda: None)
    modes.setup()
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert len(capsys.readouterr().out.splitlines()) == 2
