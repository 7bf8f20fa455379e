"""RWKV-7 of flash-linear-attention, its own layer and its Hugging Face model, on `wkv7`."""

import sys

import pytest
import torch

from rwkv_lessons.interop import fla_rwkv7
from rwkv_lessons.interop.fla import patch_fla

MISSING = "flash-linear-attention, einops or transformers is not installed"
SIZE, HEAD, LAYERS, WORDS = 32, 16, 2, 50
ENDS = [40, 61, 62, 70]  # where the parts of a text end: many tokens, few, and one


@pytest.fixture
def models():
    """`fla.models.rwkv7`, as the RWKV-7 repositories of Hugging Face load it."""
    return pytest.importorskip("fla.models.rwkv7", reason=MISSING, exc_type=ImportError)


@pytest.fixture
def in_torch(monkeypatch):
    """What FLA computes around the recurrence, by the functions that it gives for reference."""
    pytest.importorskip("fla.models.rwkv7", reason=MISSING, exc_type=ImportError)
    layer, model = (sys.modules[f"fla.{name}"] for name in ("layers.rwkv7", "models.rwkv7"))
    model = sys.modules[f"{model.__name__}.modeling_rwkv7"]
    ops = {
        "fused_addcmul_rwkv7": ("fused_addcmul", "torch_addcmul_rwkv7"),
        "fused_k_rwkv7": ("fused_k_update", "k_update_ref"),
        "gate_output_correction": ("gate_output_correction", "gate_output_correction_ref"),
    }
    for name, (file, reference) in ops.items():
        monkeypatch.setattr(layer, name, getattr(sys.modules[f"fla.ops.rwkv7.{file}"], reference))
    for module in (layer, model):
        monkeypatch.setattr(module, "token_shift", token_shift)


def token_shift(x, cu_seqlens=None, output_cache=False, cache=None):
    before = x.new_zeros(x[:, :1].shape) if cache is None else cache.view(x[:, :1].shape)
    delta = torch.cat([before, x[:, :-1]], 1) - x
    return (delta, x[:, -1:].squeeze(1)) if output_cache else delta


@pytest.fixture
def theirs(monkeypatch):
    """FLA's recurrence in Python loops, where its kernels would be called."""
    name = "fla.ops.generalized_delta_rule.dplr.naive"
    naive = pytest.importorskip(name, reason=MISSING, exc_type=ImportError).dplr_recurrence

    def chunk(r, w, k, v, a, b, scale, initial_state, output_final_state, **_):
        r = r * (scale * r.shape[-1] ** 0.5)  # the loop has FLA's usual scale
        tensors = (x.transpose(1, 2) for x in (r, k, v, a, b, w))
        o, state = naive(*tensors, initial_state, output_final_state)
        return o.transpose(1, 2), state

    def recurrent(r, w, k, v, kk, a, **options):
        return chunk(r, w, k, v, -kk, kk * a, **options)

    layer = sys.modules["fla.layers.rwkv7"]
    monkeypatch.setattr(layer, "chunk_rwkv7", chunk)
    monkeypatch.setattr(layer, "fused_mul_recurrent_rwkv7", recurrent)


@pytest.fixture
def calls(monkeypatch):
    """T of every call that reaches `wkv7`."""
    seen, ours = [], fla_rwkv7.wkv7
    count = lambda *a, **k: seen.append(a[0].shape[1]) or ours(*a, **k)  # noqa: E731
    monkeypatch.setattr(fla_rwkv7, "wkv7", count)
    return seen


def language_model(models, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": SIZE, "head_dim": HEAD, "num_hidden_layers": LAYERS}
    sizes |= {"vocab_size": WORDS, "decay_low_rank_dim": 8, "gate_low_rank_dim": 8}
    sizes |= {"a_low_rank_dim": 8, "v_low_rank_dim": 8} | options
    model = models.RWKV7ForCausalLM(models.RWKV7Config(**sizes))
    with torch.no_grad():  # as after training: some of the parameters start as zeros
        for x in model.parameters():
            x.add_(0.1 * torch.randn_like(x))
    return model


def through(model, text):
    """Logits of a text, of its parts one after another from the cache, and gradients."""
    logits = model(text, use_cache=False).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    loss = (logits.float() * weights.to(logits.device)).sum()
    named = [(n, x) for n, x in model.named_parameters() if x.requires_grad]
    gradients = torch.autograd.grad(loss, [x for _, x in named])
    cache, parts = None, []
    with torch.no_grad():
        for start, end in zip([0, *ENDS[:-1]], ENDS, strict=True):
            found = model(text[:, start:end], past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            parts.append(found.logits)
    return {"logits": logits.detach(), "parts": torch.cat(parts, 1)} | {
        name: x for (name, _), x in zip(named, gradients, strict=True)
    }


def near(got, want, limit):
    for name, y in want.items():
        error, size = (got[name].double() - y.double()).norm(), y.double().norm()
        assert error <= limit * size, f"{name}: {error / size:.1e}"


def text(device="cpu"):
    return torch.randint(WORDS, (2, ENDS[-1]), generator=torch.Generator().manual_seed(2)).to(
        device
    )


def test_one_call_puts_a_hugging_face_model_on_ours(models, in_torch, theirs, calls):
    """Logits, decoding from the cache and all gradients, as with FLA's own loop."""
    model = language_model(models, fuse_norm=False, fuse_cross_entropy=False).eval()
    want = through(model, text())
    assert not calls
    with patch_fla():
        got = through(model, text())
    lengths = [end - start for start, end in zip([0, *ENDS[:-1]], ENDS, strict=True)]
    assert calls == [n for n in [ENDS[-1], *lengths] for _ in range(LAYERS)]
    near(got, want, 1e-4)  # float32 through two layers, and a gradient that cancels in them
    assert (got["logits"] - got["parts"]).norm() <= 1e-4 * got["logits"].norm()
    through(model, text())
    assert len(calls) == 10  # undone


def test_one_layer_with_packed_sequences(in_torch, calls):
    """cu_seqlens reaches ours: the sequences are as if each was alone."""
    layers = sys.modules["fla.layers.rwkv7"]
    torch.manual_seed(0)
    sizes = {"hidden_size": SIZE, "head_dim": HEAD, "layer_idx": 0, "num_hidden_layers": LAYERS}
    layer = layers.RWKV7Attention(**sizes)
    with torch.no_grad():
        layer.o_proj.weight.normal_()
    x, ends = torch.randn(1, 30, SIZE), [0, 11, 30]
    with patch_fla():
        alone = [layer(x[:, a:b])[0] for a, b in zip(ends[:-1], ends[1:], strict=True)]
        layers.token_shift = lambda x, *_, **__: (
            torch.cat([token_shift(x[:, a:b]) for a, b in ((0, 11), (11, 30))], 1),
            None,
        )
        together = layer(x, cu_seqlens=torch.tensor(ends))[0]
    assert calls == [11, 19, 30]
    torch.testing.assert_close(together, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_hugging_face_model_on_our_kernels_is_that_on_flas(models, calls):
    sizes = {"hidden_size": 256, "head_dim": 64, "fuse_cross_entropy": False}
    model = language_model(models, **sizes).eval().cuda().bfloat16()
    want = through(model, text("cuda"))
    assert not calls
    with patch_fla():
        got = through(model, text("cuda"))
    assert len(calls) == 10
    near(got, want, 0.05)  # bf16 through two layers and back: 2⁻⁸ some ten times
