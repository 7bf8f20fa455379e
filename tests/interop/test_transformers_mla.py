"""MiniCPM3 and DeepSeek of the transformers package, with their attention and with ours."""

import copy
import subprocess
import sys

import pytest
import torch

from rwkv_lessons.bench import __main__ as bench
from rwkv_lessons.interop.transformers_rwkv import undo_latent_mla, use_latent_mla

transformers = pytest.importorskip("transformers", "5.17", "the adapter needs transformers 5.17")

SIZES = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=3,
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=20,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    initializer_range=0.2,  # large enough, and the head another matrix than the embedding:
    tie_word_embeddings=False,  # a text then is more than one token again and again
)
EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1)
EXPERTS |= dict(topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1)


def minicpm3():
    return transformers.MiniCPM3ForCausalLM(transformers.MiniCPM3Config(**SIZES))


def deepseek_v2():
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**SIZES, **EXPERTS))


def deepseek_v3():
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**SIZES, **EXPERTS))


def youtu():
    return transformers.YoutuForCausalLM(transformers.YoutuConfig(**SIZES))


def glm4_moe_lite():
    config = transformers.Glm4MoeLiteConfig(**SIZES, **EXPERTS)
    return transformers.Glm4MoeLiteForCausalLM(config)


def mistral4():
    yarn = {"original_max_position_embeddings": 64, "factor": 2.0}
    config = transformers.Mistral4Config(**SIZES, **EXPERTS)
    config.rope_parameters |= yarn
    return transformers.Mistral4ForCausalLM(config)


@pytest.fixture(params=[minicpm3, deepseek_v2, deepseek_v3, youtu, glm4_moe_lite, mistral4])
def model(request):
    torch.manual_seed(0)
    model = request.param().eval()
    model.set_attn_implementation("eager")
    return model


def texts(*lengths, seed=1):
    """Tokens `[B, T]` and their mask, padded on the left to the longest."""
    T = max(lengths)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, SIZES["vocab_size"], (len(lengths), T), generator=generator)
    mask = torch.arange(T) >= T - torch.tensor(lengths)[:, None]
    return {"input_ids": tokens.where(mask, 0), "attention_mask": mask.long()}


def written(model, **options):
    options = dict(max_new_tokens=12, do_sample=False) | options
    result = model.generate(
        **options, output_logits=True, return_dict_in_generate=True, pad_token_id=0
    )
    return result.sequences, torch.stack(result.logits, 1)


# float32 on both sides, sums in another order; logits are of size 1.
CLOSE = dict(rtol=0, atol=1e-4)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("lengths", [(7,), (7, 3, 1)])
def test_writes_what_the_model_writes(model, lengths, cache):
    given = texts(*lengths) | ({"cache_implementation": cache} if cache else {})
    tokens, logits = written(model, **given)
    found, ours = written(use_latent_mla(model), **given)
    assert torch.equal(found, tokens)
    torch.testing.assert_close(ours, logits, **CLOSE)
    assert len(found[:, -12:].unique()) > 3  # a model that repeats itself would show nothing


@pytest.mark.gpu
@pytest.mark.parametrize("cache", [None, "static"])
def test_writes_the_same_on_a_gpu(model, cache):
    given = texts(70, 7, 3)  # 70 tokens: the kernel of prefill, then that of decode
    given |= {"cache_implementation": cache, "disable_compile": True} if cache else {}
    model.cuda()
    given |= {name: given[name].cuda() for name in ("input_ids", "attention_mask")}
    tokens, logits = written(model, **given)
    found, ours = written(use_latent_mla(model), **given)
    assert torch.equal(found, tokens)
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-3)  # three TF32 products for one


def test_goes_through_our_attention(model, monkeypatch):
    from rwkv_lessons.interop import transformers_mla as mla_transformers

    calls = []

    def spy(*given, **which):
        calls.append((given[0].shape[1], sorted(which)))
        return mla(*given, **which)

    mla = mla_transformers.mla
    monkeypatch.setattr(mla_transformers, "mla", spy)
    written(use_latent_mla(model), **texts(5), max_new_tokens=2)
    layers = SIZES["num_hidden_layers"]
    assert calls == [(5, ["scale"])] * layers + [(1, ["scale"])] * layers
    calls.clear()
    written(model, **texts(5, 2), max_new_tokens=2)
    padded = ["left_padding", "lengths", "scale"]
    assert calls == [(5, ["left_padding", "scale"])] * layers + [(1, padded)] * layers


def test_several_tokens_against_a_longer_cache(model):
    """Chunks of a text give the logits of the whole, with either cache."""
    given = texts(11, 8)
    expected = model(**given).logits[:, 5:]
    use_latent_mla(model)
    static = transformers.StaticCache(config=model.config, max_cache_len=16)
    for cache in (transformers.DynamicCache(config=model.config), static):
        with torch.no_grad():
            first = {name: x[:, :5] for name, x in given.items()}
            model(**first, past_key_values=cache)
            rest = model(
                input_ids=given["input_ids"][:, 5:],
                attention_mask=given["attention_mask"],
                past_key_values=cache,
            ).logits
        torch.testing.assert_close(rest, expected, **CLOSE)


def test_padding_on_the_right_and_masks_of_ones_own(model):
    given = texts(9, 6)
    given["attention_mask"] = given["attention_mask"].flip(1)
    kept = given["attention_mask"].bool()
    hidden = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, 1, 9, 9).clone()
    hidden[:, :, 4:, 1] = False
    own = torch.zeros(2, 1, 9, 9).masked_fill(~hidden, torch.finfo(torch.float32).min)
    for mask in (given["attention_mask"], own):
        given["attention_mask"] = mask
        with torch.no_grad():
            expected = model(**given).logits
            found = use_latent_mla(model)(**given).logits
        undo_latent_mla(model)
        torch.testing.assert_close(found[kept], expected[kept], **CLOSE)


def test_several_texts_in_one_row(model):
    tokens = texts(9)["input_ids"]
    position = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    given = {"input_ids": tokens, "position_ids": position, "use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        found = use_latent_mla(model)(**given).logits
        alone = model(input_ids=tokens[:, 5:], use_cache=False).logits
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(found[:, 5:], alone, **CLOSE)


def test_gradients(model):
    given = texts(9, 6)
    kept = given["attention_mask"][..., None]
    (model(**given).logits * kept).square().mean().backward()
    expected = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad()
    (use_latent_mla(model)(**given).logits * kept).square().mean().backward()
    for name, gradient in expected.items():
        found = dict(model.named_parameters())[name].grad
        assert (found - gradient).norm() <= 1e-4 * gradient.norm(), name
    assert any("kv_b_proj" in name for name in expected)


def test_a_compiled_step_has_no_break(model):
    """What `generate` compiles on a GPU where the cache is static: one token, its mask made."""
    given = texts(6, 4)
    use_latent_mla(model)
    cache = transformers.StaticCache(config=model.config, max_cache_len=8)
    with torch.no_grad():
        model(**given, past_key_values=cache)
        tokens = torch.nn.functional.pad(given["input_ids"], (0, 1), value=5)
        mask = torch.nn.functional.pad(given["attention_mask"], (0, 1), value=1)
        expected = model(tokens, mask).logits[:, -1]
        mask = torch.tensor([[0, 7], [2, 7]], dtype=torch.int32)[:, None, None]
        step = {"input_ids": torch.full((2, 1), 5), "attention_mask": mask}
        step |= {"position_ids": torch.full((2, 1), 6), "past_key_values": cache}
        found = torch.compile(model, backend="eager", fullgraph=True)(**step).logits[:, -1]
    torch.testing.assert_close(found, expected, **CLOSE)


def test_undo(model):
    given = texts(6, 4)
    tokens, logits = written(model, **given)
    assert use_latent_mla(use_latent_mla(model)) is model
    assert model.config._attn_implementation == "latent_mla"
    assert undo_latent_mla(undo_latent_mla(model)) is model
    assert model.config._attn_implementation == "eager"
    assert not any("expand_kv" in vars(part) for part in model.modules())
    again, after = written(model, **given)
    assert torch.equal(again, tokens) and torch.equal(after, logits)


LOADS = """
import sys, torch
model, tokens, expected = torch.load(sys.argv[1], weights_only=False)
assert model.config._attn_implementation == "latent_mla"
# float32's own bounds: another process may have other threads, which add in another order
torch.testing.assert_close(model(tokens).logits, expected)
"""


def test_a_changed_model_can_be_loaded_in_another_process(tmp_path):
    torch.manual_seed(0)
    model, tokens = use_latent_mla(minicpm3().eval()), texts(6)["input_ids"]
    with torch.no_grad():
        expected = model(tokens).logits
        assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    torch.save((model, tokens, expected), tmp_path / "model.pt")
    command = [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert not run.returncode, run.stderr


def test_one_model_and_not_the_other():
    torch.manual_seed(0)
    one, other = minicpm3(), minicpm3()
    use_latent_mla(one)
    assert other.config._attn_implementation != "latent_mla"
    assert "expand_kv" not in vars(other.model.layers[0].self_attn)


def test_a_model_that_shares_the_config_stays_as_it_is():
    torch.manual_seed(0)
    given, one = texts(6, 4), minicpm3().eval()
    other = transformers.MiniCPM3ForCausalLM(one.config).eval()
    expected = [written(model, **given)[1] for model in (one, other)]
    use_latent_mla(one)
    later = transformers.MiniCPM3ForCausalLM(one.config).eval()  # made of the changed config
    later.load_state_dict(one.state_dict())
    own = later.config._attn_implementation
    assert own == "latent_mla" and other.config._attn_implementation != own
    found = [written(model, **given)[1] for model in (one, other, later)]
    for logits, wanted in zip(found, [*expected, expected[0]], strict=True):
        torch.testing.assert_close(logits, wanted, **CLOSE)
    use_latent_mla(other)
    undo_latent_mla(one)
    for model, wanted in zip((one, other), expected, strict=True):
        torch.testing.assert_close(written(model, **given)[1], wanted, **CLOSE)


def test_another_attention_may_be_asked_for_without_undo():
    torch.manual_seed(0)
    given, model = texts(6, 4), minicpm3().eval()
    expected = written(model, **given)[1]
    use_latent_mla(model).set_attn_implementation("eager")
    torch.testing.assert_close(written(model, **given)[1], expected, **CLOSE)
    assert use_latent_mla(model).config._attn_implementation == "latent_mla"
    torch.testing.assert_close(written(model, **given)[1], expected, **CLOSE)
    model.set_attn_implementation("sdpa")
    assert undo_latent_mla(model).config._attn_implementation == "sdpa"


def test_under_autocast(model):
    """DeepSeek-V2 turns positions in float32, and the cache then has parts of two dtypes."""
    given = texts(6, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        expected = model(**given).logits
        found = use_latent_mla(model)(**given).logits
    kept = given["attention_mask"].bool()
    # Two layers that round to 8 bits in several places, here and there in other ones.
    assert (found - expected)[kept].norm() < 0.1 * expected[kept].norm()
    exact = undo_latent_mla(model)(**given).logits
    assert (expected - exact)[kept].norm() > 1e-3 * exact[kept].norm()  # it was on


def doubled(module, inputs, output):
    return 2 * output


def test_hooks_are_not_skipped_without_a_word():
    model = minicpm3()
    layer = model.model.layers[1].self_attn.kv_b_proj
    hook = layer.register_forward_hook(doubled)
    with pytest.raises(ValueError, match="kv_b_proj must have no hooks"):
        use_latent_mla(model)
    hook.remove()
    use_latent_mla(model)
    model(**texts(4))
    layer.register_forward_pre_hook(lambda module, inputs: inputs)
    with pytest.raises(ValueError, match="kv_b_proj must have no hooks"):
        model(**texts(4))
    layer = model.model.layers[0].self_attn.kv_b_proj
    layer.forward = layer.forward  # as a wrapper does that is no hook
    with pytest.raises(ValueError, match="nor another forward"):
        model(**texts(4))


def test_refuses_what_has_no_latent_cache():
    config = transformers.LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="model must be .* got LlamaForCausalLM, model_type 'll"):
        use_latent_mla(transformers.LlamaForCausalLM(config))
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got str"):
        use_latent_mla("minicpm3")


def test_refuses_wrapped_weights():
    model = minicpm3()
    attention = model.model.layers[0].self_attn
    attention.kv_b_proj = torch.nn.Sequential(attention.kv_b_proj)
    with pytest.raises(ValueError, match="kv_b_proj must be a torch.nn.Linear, got Sequential"):
        use_latent_mla(model)
    assert model.config._attn_implementation != "latent_mla"


def test_refuses_dropout_in_training():
    model = use_latent_mla(minicpm3()).train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match="attention_dropout is 0.1, needs 0"):
        model(**texts(4))


def test_every_way_of_the_benchmark_writes_the_same():
    from rwkv_lessons.bench.commands import mla_generate

    model = mla_generate.make_model("cpu", small=True)
    tokens = torch.randint(2, 64, (2, 6), generator=torch.Generator().manual_seed(0))
    found = {}
    for method, way in mla_generate.METHODS.items():
        use_latent_mla(model) if "latent" in method else undo_latent_mla(model)
        with torch.no_grad():
            found[method] = way(model, 2, 11)(tokens, 5)
    for method, text in found.items():
        assert torch.equal(text, found["eager"]), method


def test_benchmark_of_generation_on_a_cpu(capsys):
    bench.main(["mla-generate", "--quick", "--shape", "1,5,3", "--methods", "sdpa,latent"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert "on the CPU" in first
    done = [text for text in lines if text.startswith("done: ")]
    assert [text.split()[1] for text in done] == ["sdpa,", "latent,"]
    rows = [text for text in lines if "1,5,3" in text]
    assert len(rows) == 2 and all("tokens/s in all" in text for text in rows)
    for wrong, said in (
        (["--record"], "not recorded"),
        (["--methods", "flash"], "no method flash"),
    ):
        with pytest.raises(SystemExit) as ended:
            bench.main(["mla-generate", "--quick", *wrong])
        assert said in f"{ended.value} {capsys.readouterr().err}"
