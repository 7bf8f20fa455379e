"""Attention by `mla` inside transformers' MiniCPM3, DeepSeek-V2, DeepSeek-V3 and similar models.

These models keep the latent in their cache, and then expand keys and values of the whole cache at
every step, in `expand_kv` of each attention module. Three things change in a loaded model:

    expand_kv   returns the latent itself while the model's attention is "latent_mla"
    attention   an entry "latent_mla" of ALL_ATTENTION_FUNCTIONS calls `mla`, with the halves of
                kv_b_proj.weight as they lie there
    mask        an entry "latent_mla" of ALL_MASK_ATTENTION_FUNCTIONS says in two numbers a
                sequence where its keys start and end, instead of query × key booleans

No fork, no trust_remote_code; transformers 5.17 or later, imported when it is used.
"""

import copy

import torch

from ..mla import mla

NAME = "latent_mla"
MODELS = ("minicpm3", "deepseek_v2", "deepseek_v3", "youtu", "glm4_moe_lite", "mistral4")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
BEFORE = "_before_latent_mla"  # an attribute of a changed model: its attention implementation


def use_latent_mla(model):
    """Makes a loaded model attend to its latent cache; `undo_latent_mla(model)` undoes this.

    It makes writing tokens faster, and reading some prompts slower than "sdpa". With MiniCPM3-4B's
    sizes on an H200, prompts of 1 × 4,096 tokens took 39 % longer, 16 × 512 tokens 13 % longer and
    16 × 4,096 tokens 3 % less, each timed once with older kernels (docs/results/mla.md).

    Args:
        model: a MiniCPM3, DeepSeek-V2 or DeepSeek-V3 model of the transformers package (or one of
            `MODELS`), on any device, in float32, float16, bfloat16 or float64. Its weights are
            shared, not copied.

    Returns:
        The model, changed in place; a second call does nothing. It gets a config of its own, so a
        model that shared its config does not change. After `set_attn_implementation` it uses the
        requested attention, until this function is called again. `generate` works with a dynamic or
        a static cache and with left-padded batches. Masks that are not a range of keys (padding on
        the right, packed sequences, custom masks) go through keys and values as before. Attention
        weights are not returned, as in "sdpa". Under torch.autocast it computes in that dtype, as
        the model's own attention does.

    Raises:
        TypeError: model is not a `torch.nn.Module`.
        ValueError: its attention has no latent cache that is known here, or its kv_b_proj is not
            a plain linear layer (quantized, or wrapped by an adapter: merge it first), or has
            hooks, which would not be called; also later, when the model is called.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if hasattr(model, BEFORE) and model.config._attn_implementation == NAME:
        return model
    parts = _attention_modules(model)
    _register()
    if not hasattr(model, BEFORE):
        _own_config(model)
    setattr(model, BEFORE, model.config._attn_implementation)
    model.set_attn_implementation(NAME)
    for part in parts:
        part.expand_kv = LatentAsItIs(part)
    return model


def undo_latent_mla(model):
    """Gives a model its own attention back and returns it; a model that has it stays as it is."""
    if hasattr(model, BEFORE):
        for part in model.modules():
            vars(part).pop("expand_kv", None)
        if model.config._attn_implementation == NAME:
            model.set_attn_implementation(getattr(model, BEFORE))
        delattr(model, BEFORE)
    return model


def latent_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """What ALL_ATTENTION_FUNCTIONS holds: query `[B, H, M, K + P]` → `[B, M, H, V]`, None.

    key and value are what `expand_kv` returned: the latent `[B, 1, N, R]` and the keys with rope
    `[B, 1, N, P]`. attention_mask comes from `latent_mask`, or it is the model's user's own.
    """
    if "expand_kv" not in vars(module):  # made with the config of a changed model
        mask = _as_booleans(attention_mask, query.shape[2], key.shape[2], key.device)
        return _sdpa(module, query, key, value, mask, scaling, dropout)
    if dropout:
        raise ValueError(
            f"attention_dropout is {dropout}, needs 0 in training: latent attention has none"
        )
    if attention_mask is not None and attention_mask.dtype != torch.int32:
        k, v = type(module).expand_kv(module, key, value)
        return _sdpa(module, query, k, v, attention_mask, scaling)
    query, key, value, weight = _in_one_dtype(query, key, value, _weight_of(module.kv_b_proj))
    K, V = module.qk_nope_head_dim, module.v_head_dim
    weight = weight.unflatten(0, (-1, K + V))  # [H, K + V, R]
    latent, k_rope, which = key[:, 0], value[:, 0], {}
    if attention_mask is not None:
        start, end = attention_mask[:, 0, 0].unbind(-1)
        which["left_padding"] = start.contiguous()
        if query.shape[2] == 1:
            which["lengths"] = end.contiguous()
        else:  # the rest of a static cache is empty: nothing there has to be expanded
            filled = attention_mask.shape[2]
            latent, k_rope = latent[:, :filled], k_rope[:, :filled]
    q, q_rope = query.transpose(1, 2).split([K, query.shape[-1] - K], -1)
    o, _ = mla(q, q_rope, latent, k_rope, weight[:, :K], weight[:, K:], scale=scaling, **which)
    return o, None


def latent_mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    use_vmap=False,
    device="cpu",
    **options,
):
    """What ALL_MASK_ATTENTION_FUNCTIONS holds: from which key to which, for each sequence.

    Returns:
        None where every query sees all keys up to its own; else int32 `[B, 1, x, 2]`, the first
        key and the number of slots that are filled, where x is 1 for one query token, and for
        several that number; or, where the keys are no range, booleans `[B, 1, M, N]`.
    """
    from transformers import masking_utils

    end = q_offset + q_length  # an integer, or a tensor where the cache is static
    plain = mask_function is not masking_utils.causal_mask_function or use_vmap or kv_offset
    # Its values are read below, which a traced function cannot do.
    plain = plain or (attention_mask is not None and torch.compiler.is_compiling())
    start, padded = torch.zeros(batch_size, dtype=torch.int32, device=device), False
    if attention_mask is not None and not plain:
        has_token = masking_utils.prepare_padding_mask(attention_mask, kv_length, 0)[:, :kv_length]
        n = torch.arange(kv_length, device=device)
        start = (
            (has_token.cumsum(1) == 0).where(n < end, False).sum(1)
        )  # the slots before the first
        in_a_row = ((has_token | (n >= end)) == (n >= start[:, None])).all()
        in_a_row, padded = torch.stack([in_a_row, start.any()]).tolist()  # waits for the device
        plain = not in_a_row
    if plain:
        options["allow_is_causal_skip"] = options["allow_is_bidirectional_skip"] = False
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            use_vmap=use_vmap, device=device, **options,
        )  # fmt: skip
    if not padded and not isinstance(end, torch.Tensor) and end == kv_length:
        return None
    ends = torch.as_tensor(end, device=device).expand(batch_size)
    bounds = torch.stack([start, ends]).int().T[:, None, None]  # [B, 1, 1, 2]
    return bounds if q_length == 1 else bounds.expand(-1, -1, int(end), -1)


def _sdpa(module, query, key, value, mask, scaling, dropout=0.0):
    """Keys and values of each head, and a mask of any form."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    options = {"scaling": scaling, "dropout": dropout, "is_causal": False}
    return sdpa(module, query, key, value, mask, **options)


def _as_booleans(mask, M, N, device):
    """What `latent_mask` returned, as booleans that broadcast to `[B, 1, M, N]`; others as is."""
    n, m = torch.arange(N, device=device), torch.arange(M, device=device)
    if mask is None:
        return (n <= (N - M + m)[:, None])[None, None]
    if mask.dtype != torch.int32:
        return mask
    start, end = mask[:, :, :1].split(1, -1)  # [B, 1, 1, 1]
    return (n >= start) & (n <= end - M + m[:, None])


def _in_one_dtype(query, *more):
    """In that of autocast, if it is on, else in query's: the parts of a key may differ."""
    device, dtype = query.device.type, query.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) for x in (query, *more)]


class LatentAsItIs:
    """What a changed model calls as `expand_kv`; loaded in another process it registers there."""

    def __init__(self, module):
        self.module = module

    def __call__(self, latent, k_rope):
        if self.module.config._attn_implementation != NAME:  # somebody asked for another
            return type(self.module).expand_kv(self.module, latent, k_rope)
        return latent, k_rope

    def __setstate__(self, state):
        vars(self).update(state)
        _register()


def _own_config(model):
    """Gives a model, and all parts that refer to its config, a copy of it."""
    shared, own = model.config, copy.deepcopy(model.config)
    for part in model.modules():
        if vars(part).get("config") is shared:
            part.config = own


def _register():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, latent_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, latent_mask)


def _attention_modules(model):
    kind = getattr(getattr(model, "config", None), "model_type", None)
    parts = [part for part in model.modules() if hasattr(type(part), "expand_kv")]
    if kind not in MODELS or not parts:
        raise ValueError(
            f"model must be one of {', '.join(MODELS)} of transformers 5.17 or later, whose cache "
            f"holds the latent; got {type(model).__name__}, model_type {kind!r}"
        )
    for part in parts:
        _weight_of(part.kv_b_proj)
    return parts


def _weight_of(layer):
    """The weight of kv_b_proj, if nothing happens where it is called but the product with it."""
    if type(layer) is not torch.nn.Linear:
        raise ValueError(
            f"kv_b_proj must be a torch.nn.Linear, got {type(layer).__name__}: "
            "quantized or wrapped weights cannot be absorbed"
        )
    # accelerate replaces `forward` to bring inputs to the device of a weight.
    replaced = "forward" in vars(layer) and not hasattr(layer, "_hf_hook")
    if replaced or any(getattr(layer, name) for name in HOOKS):
        raise ValueError(
            "kv_b_proj must have no hooks, nor another forward: latent attention takes its weight "
            "and would not call them; remove them, or see undo_latent_mla"
        )
    if layer.bias is not None or layer.weight.is_meta:
        raise ValueError("kv_b_proj must have no bias, and its weight on a device")
    return layer.weight
