"""The code in README.md and docs: each block runs alone, as somebody copies it into a file."""

import re
import sys
from types import ModuleType

import pytest
import torch
from support import modeling_rwkv6
from support.modeling_rwkv import Config
from support.modeling_rwkv6 import Rwkv6ForCausalLM

from rwkv_lessons import wkv6
from rwkv_lessons.interop import fla, rwkv_package
from rwkv_lessons.lab.course.exercises import ROOT
from rwkv_lessons.wkv5 import wkv5

# A block of text right after one of code is what it prints.
BLOCK = re.compile(r"```py\w*\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
PAGES = "library", "own_kernels", "kda", "serving", "doors", "generate"
SNIPPETS = {
    f"{page} {n}": found.groups()
    for page in ("README.md", *(f"docs/{name}.md" for name in PAGES))
    for n, found in enumerate(BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")))
}


def small_model(name, **options):
    """What `from_pretrained` gives without a download: a small model of the same kind."""
    if name.startswith("RWKV/rwkv-6") and options == {"trust_remote_code": True}:
        return Rwkv6ForCausalLM(Config())
    if name == "openbmb/MiniCPM3-4B" and not options:
        transformers = pytest.importorskip("transformers", "5.17")
        sizes = {"hidden_size": 16, "intermediate_size": 8, "vocab_size": 9, "q_lora_rank": 8}
        sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
        return transformers.MiniCPM3ForCausalLM(transformers.MiniCPM3Config(**sizes))
    raise ValueError(name)


@pytest.fixture
def no_downloads(monkeypatch):
    transformers = pytest.importorskip("transformers", "5.17")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", small_model)
    for name in ("fla", "fla.layers", "fla.layers.rwkv6", "fla.ops", "fla.ops.rwkv6", *fla.FILES):
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        vars(module).update(dict.fromkeys(fla.FUNCTIONS, lambda *given: "theirs"))
    monkeypatch.setattr(modeling_rwkv6, "rwkv6_linear_attention", lambda *given: "theirs")
    package = {"__path__": [], "RWKV": lambda model, strategy: f"{model}, {strategy}"}
    package |= dict.fromkeys((rwkv_package.ONE, rwkv_package.SEVERAL))
    for name in ("rwkv", "rwkv.model"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(package)
    monkeypatch.setattr(sys.modules["rwkv"], "model", sys.modules["rwkv.model"], raising=False)
    monkeypatch.setenv("RWKV_V7_ON", "0")  # restored afterwards


@pytest.mark.parametrize("name", SNIPPETS)
def test_each_snippet_runs_by_itself(name, capsys, monkeypatch, no_downloads, tmp_path):
    names = {"__name__": "snippet"}
    code, prints = SNIPPETS[name]
    file = tmp_path / "snippet.py"
    file.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(file), "exec"), names)
    if prints is not None:
        assert capsys.readouterr().out == prints
    if "s" in names:  # the recurrence of the first page
        given = [names[x][None, :, None] for x in "rkv"] + [names[x][None] for x in "wu"]
        o, s = wkv5(*given)
        torch.testing.assert_close(names["o"], o[0, :, 0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(names["s"], s[0, 0], rtol=1e-4, atol=1e-4)
    if "states" in names:
        assert names["states"].shape == (3, 4, 64, 64)
        assert capsys.readouterr().out.strip() in wkv6.METHODS
    if "lse" in names:
        assert names["lse"].shape == (2, 1, 16 if "cache" in names else 8)
    if "patch_fla" in names:
        assert sys.modules["fla.layers.rwkv6"].chunk_rwkv6.replacement is fla.chunk_rwkv6
    if "undo_latent_mla" in names:
        assert modeling_rwkv6.rwkv6_linear_attention() == "theirs"
    elif "use_latent_mla" in names:
        assert names["model"].config._attn_implementation == "latent_mla"
        assert modeling_rwkv6.rwkv6_linear_attention.stands


def test_every_page_has_its_snippets():
    assert sum(name.startswith("README") for name in SNIPPETS) == 4
    assert sum(name.startswith("docs/library") for name in SNIPPETS) == 10
    own = [prints for name, (_, prints) in SNIPPETS.items() if name.startswith("docs/own_kernels")]
    assert len(own) == 6 and all(own)
    assert sum(name.startswith("docs/doors") for name in SNIPPETS) == 5
