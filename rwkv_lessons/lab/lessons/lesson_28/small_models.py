"""Small random models of the transformers package with latent attention: what they keep and make.

Nothing here imports transformers before it is needed.
"""

import contextlib
import warnings

import torch

from ..lessons_25_28.evidence import allocations

SIZES = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, max_position_embeddings=512,
    pad_token_id=0, bos_token_id=1, eos_token_id=None,
    initializer_range=0.2, tie_word_embeddings=False,  # or it writes one token again and again
)  # fmt: skip
EXPERTS = dict(
    n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
    moe_intermediate_size=16, first_k_dense_replace=1,
)  # fmt: skip
LESSON = "lesson_28"  # the name under which a learner's function is registered


def small_model(kind, **changes):
    """A random model: "MiniCPM3" or "DeepseekV3", float32, with its own attention."""
    transformers = _transformers()
    more = {} if kind == "MiniCPM3" else EXPERTS
    config = getattr(transformers, f"{kind}Config")(**SIZES | more | changes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.set_attn_implementation("eager")
    return model


def _transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tqdm, for want of a widget for progress bars
        import transformers
    return transformers


def sequences(*lengths):
    """Random tokens and their mask, padded on the left to the longest."""
    T = max(lengths)
    generator = torch.Generator().manual_seed(T)
    tokens = torch.randint(2, SIZES["vocab_size"], (len(lengths), T), generator=generator)
    mask = torch.arange(T) >= T - torch.tensor(lengths)[:, None]
    return {"input_ids": tokens.where(mask, 0), "attention_mask": mask.long()}


def written(model, prompts, tokens=12):
    """Greedy: the new tokens [B, tokens] and the logits that chose them."""
    with torch.no_grad():
        result = model.generate(
            **prompts, max_new_tokens=tokens, do_sample=False, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    return result.sequences[:, -tokens:], torch.stack(result.logits, 1)


@contextlib.contextmanager
def attending(model, function):
    """The model with `function` as its attention and the latent unexpanded; restored at the end."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(LESSON, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(LESSON, eager_mask)
    parts = [part for part in model.modules() if hasattr(type(part), "expand_kv")]
    model.set_attn_implementation(LESSON)
    for part in parts:
        part.expand_kv = lambda latent, k_rope: (latent, k_rope)
    try:
        yield model
    finally:
        for part in parts:
            del part.expand_kv
        model.set_attn_implementation(before)


def cached(model, tokens):
    """Bytes that a model's cache holds after so many tokens, and with keys and values.

    Returns:
        the bytes in the cache; what it would hold with keys and values of every head.
    """
    with torch.no_grad():
        cache = model(**sequences(tokens), use_cache=True).past_key_values
    bytes_cached = sum(x.nbytes for entry in cache.layers for x in (entry.keys, entry.values))
    c = model.config
    numbers = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim)
    return bytes_cached, tokens * c.num_hidden_layers * numbers * model.dtype.itemsize


def one_step(model, tokens):
    """The tensors that a model makes for one more token after `tokens`, as a list of `Made`."""
    prompts = sequences(tokens)
    with torch.no_grad():
        cache = model(**prompts, use_cache=True).past_key_values
        token = prompts["input_ids"][:, -1:]
        return allocations(lambda: model(token, past_key_values=cache, use_cache=True))


def shapes(model, tokens=12):
    """Prints what a model's attention is given for one more token after `tokens`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    prompts, calls = sequences(tokens), []
    with torch.no_grad():
        cache = model(**prompts, use_cache=True).past_key_values
        for name, x in (("keys", cache.layers[0].keys), ("values", cache.layers[0].values)):
            print(f'cache, "{name}"'.ljust(18), list(x.shape))

        def look(module, query, key, value, *args, **named):
            calls.append((query, key, value))
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, *args, **named)

        before = model.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(LESSON, look)
        model.set_attn_implementation(LESSON)
        model(prompts["input_ids"][:, -1:], past_key_values=cache, use_cache=True)
        model.set_attn_implementation(before)
    for name, x in zip(("query", "key", "value"), calls[0], strict=True):
        print(f"attention, {name}".ljust(18), list(x.shape))
