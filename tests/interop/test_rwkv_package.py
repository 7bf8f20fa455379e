"""RWKV-7 models of the `rwkv` package on `wkv7`: where it is installed with the package itself."""

import functools
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from support.rwkv_package_model import PROMPT, WEIGHTS

from rwkv_lessons.interop import rwkv_package
from rwkv_lessons.interop.rwkv_package import patch_rwkv_package
from rwkv_lessons.models.generate import Generation
from rwkv_lessons.models.rwkv7 import Rwkv7
from rwkv_lessons.operations.entries import ROOT

ORDER = "x_r x_w x_k x_v x_a x_g w0 w1 w2 a0 a1 a2 v0 v1 v2 g1 g2 k_k k_a r_k".split()


@pytest.fixture(scope="module")
def tokens_of(tmp_path_factory):
    """Whose functions → greedy tokens of the package's model, and states after them."""
    if find_spec("rwkv") is None:
        pytest.skip("needs the package rwkv")
    folder, program = (
        tmp_path_factory.mktemp("models"),
        ROOT / "tests/support/rwkv_package_model.py",
    )

    @functools.cache
    def results(whose):
        subprocess.run([sys.executable, program, folder, whose], cwd=ROOT, check=True)
        return torch.load(folder / f"{whose}.results")

    return results


def test_a_model_of_the_package_writes_the_same_tokens(tokens_of):
    (tokens, states), (want, want_states) = tokens_of("ours"), tokens_of("theirs")
    assert tokens == want and len(set(tokens)) > 5
    for x, y in zip(states, want_states, strict=True):  # float32, 50 tokens, two layers
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_our_model_writes_the_tokens_of_the_packages_model(tokens_of):
    want, want_states = tokens_of("theirs")
    writing = Generation(Rwkv7(WEIGHTS), 2)
    writing.feed({0: [7], 1: PROMPT})  # beside another sequence
    tokens = []
    for _ in want:
        drawn = writing.draw(temperature=0)
        tokens.append(drawn[1])
        writing.feed({n: [token] for n, token in drawn.items()})
    assert tokens == want
    s = writing.states
    ours = [(s.time[n, 1], s.wkv[n, 1].mT, s.channels[n, 1]) for n in range(len(s.wkv))]
    for x, y in zip([x for layer in ours for x in layer], want_states, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def layer(n):
    """Arguments of a layer's time mixing after the tokens and the state."""
    found = {name.removeprefix(f"blocks.{n}.att."): x for name, x in WEIGHTS.items()}
    parts = [found[name].squeeze() for name in ORDER]
    parts[-1] = parts[-1].flatten()
    parts += [found[f"{x}.weight"].T for x in ("receptance", "key", "value", "output")]
    return parts + [found["ln_x.weight"], found["ln_x.bias"]]


@pytest.mark.parametrize("n", [0, 1])
def test_several_tokens_are_one_after_the_other(n):
    H, N, T = 2, 64, 5
    x, v_first = torch.randn(2, T, H * N)
    before, state = torch.randn(H * N), torch.randn(H, N, N)
    o, last, after, first = rwkv_package.mix_several(n, H, N, x, before, v_first, state, *layer(n))
    assert torch.equal(last, x[-1])
    s = state
    for t in range(T):
        given = (x[t], before, v_first[t], s, *layer(n))
        o_t, before, s, first_t = rwkv_package.mix_one(n, H, N, *given)
        torch.testing.assert_close(o_t, o[t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first_t, first[t], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(s, after, rtol=1e-4, atol=1e-5)


def test_a_patch_says_what_it_needs_and_is_undone(monkeypatch):
    monkeypatch.delitem(sys.modules, "rwkv.model", raising=False)
    with pytest.raises(RuntimeError, match="rwkv.model is not imported: set"):
        patch_rwkv_package()
    monkeypatch.setitem(sys.modules, "rwkv.model", SimpleNamespace())
    with pytest.raises(RuntimeError, match="imported without RWKV_V7_ON=1"):
        patch_rwkv_package()
    module = SimpleNamespace(RWKV_x070_TMix_one="one", RWKV_x070_TMix_seq="several")
    monkeypatch.setitem(sys.modules, "rwkv.model", module)
    with patch_rwkv_package():
        assert module.RWKV_x070_TMix_seq is rwkv_package.mix_several
    assert vars(module) == {"RWKV_x070_TMix_one": "one", "RWKV_x070_TMix_seq": "several"}
