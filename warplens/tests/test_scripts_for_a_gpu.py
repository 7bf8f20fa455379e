"""Scripts written for a GPU are traced as they are, where there is none."""

import pytest

pytest.importorskip("triton")

from warplens.launched import main

SCRIPT = """
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, o < n), o < n)


def twice(x):
    y = torch.empty_like(x)
    assert x.device == DEVICE and x.is_cuda
    doubled[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, y, len(x))
    return y


x = torch.rand(100, device="cuda")
torch.testing.assert_close(twice(x), 2 * x.to("cuda"))
raise SystemExit("its own launch ran")
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def test_an_unchanged_script_is_traced_with_its_first_configuration(script, capsys):
    assert main([f"{script}:doubled"]) == 0
    text = capsys.readouterr().out
    assert "the first that fits of 2, BLOCK=64" in text and "2 programs" in text


def test_a_launch_that_is_given_needs_none_of_the_scripts(script, capsys):
    launch = "[2](rand(70, device='cuda'), zeros(70, device='cuda'), 70)"
    assert main([f"{script}:doubled", launch]) == 0
    assert "2 programs" in capsys.readouterr().out
