"""Attention inside the transformers package's MiniCPM3, DeepSeek-V2, -V3 and their like, by `mla`.

These models keep the latent in their cache, and then expand keys and values of the whole cache at
every step, in `expand_kv` of each attention module. Three things change in a model that is loaded:

    expand_kv   gives the latent back as it is
    attention   an entry "latent_mla" of ALL_ATTENTION_FUNCTIONS calls `mla`, with the halves of
                kv_b_proj.weight as they lie there
    mask        an entry "latent_mla" of ALL_MASK_ATTENTION_FUNCTIONS says in two numbers a
                sequence where its keys start and end, in place of query × key booleans

No fork, no trust_remote_code; transformers 5.17 or later, imported when it is used.
"""

import torch

from ..mla import mla

NAME = "latent_mla"
MODELS = ("minicpm3", "deepseek_v2", "deepseek_v3", "youtu", "glm4_moe_lite", "mistral4")
BEFORE = "_before_latent_mla"  # an attribute of a changed model: its attention implementation


def use_latent_mla(model):
    """Makes a loaded model attend to its latent cache; `undo_latent_mla(model)` takes it back.

    Args:
        model: a MiniCPM3, DeepSeek-V2 or DeepSeek-V3 model of the transformers package (or one of
            `MODELS`), on any device, in float32, float16, bfloat16 or float64. Its weights are
            shared, not copied.

    Returns:
        The model, changed in place; a second time does nothing. `generate` takes a dynamic or a
        static cache and left-padded batches. Masks that are not a range of keys (padding on the
        right, packed sequences, masks of one's own) go through keys and values as before.
        Attention weights are not returned, as in "sdpa".

    Raises:
        TypeError: model is not a `torch.nn.Module`.
        ValueError: its attention has no latent cache that is known here, or its kv_b_proj is not
            a plain linear layer (quantized, or wrapped by an adapter: merge it first).
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if hasattr(model, BEFORE):
        return model
    parts = _attention_modules(model)
    _register()
    setattr(model, BEFORE, model.config._attn_implementation)
    model.set_attn_implementation(NAME)
    for part in parts:
        part.expand_kv = _leave_latent
    return model


def undo_latent_mla(model):
    """Gives a model its own attention back and returns it; a model that has it stays as it is."""
    if hasattr(model, BEFORE):
        for part in model.modules():
            vars(part).pop("expand_kv", None)
        model.set_attn_implementation(getattr(model, BEFORE))
        delattr(model, BEFORE)
    return model


def latent_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """What ALL_ATTENTION_FUNCTIONS holds: query `[B, H, M, K + P]` → `[B, M, H, V]`, None.

    key and value are what `expand_kv` returned: the latent `[B, 1, N, R]` and the keys with rope
    `[B, 1, N, P]`. attention_mask comes from `latent_mask`, or it is the model's user's own.
    """
    if dropout:
        raise ValueError(
            f"attention_dropout is {dropout}, needs 0 in training: latent attention has none"
        )
    if attention_mask is not None and attention_mask.dtype != torch.int32:
        return _attend_expanded(module, query, key, value, attention_mask, scaling)
    K, V = module.qk_nope_head_dim, module.v_head_dim
    weight = module.kv_b_proj.weight.unflatten(0, (-1, K + V))  # [H, K + V, R]
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
    **rest,
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
        held = masking_utils.prepare_padding_mask(attention_mask, kv_length, 0)[:, :kv_length]
        n = torch.arange(kv_length, device=device)
        start = (held.cumsum(1) == 0).where(n < end, False).sum(1)  # the slots before the first
        in_a_row = ((held | (n >= end)) == (n >= start[:, None])).all()
        in_a_row, padded = torch.stack([in_a_row, start.any()]).tolist()  # waits for the device
        plain = not in_a_row
    if plain:
        rest["allow_is_causal_skip"] = rest["allow_is_bidirectional_skip"] = False
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            use_vmap=use_vmap, device=device, **rest,
        )  # fmt: skip
    if not padded and not isinstance(end, torch.Tensor) and end == kv_length:
        return None
    ends = torch.as_tensor(end, device=device).expand(batch_size)
    bounds = torch.stack([start, ends]).int().T[:, None, None]  # [B, 1, 1, 2]
    return bounds if q_length == 1 else bounds.expand(-1, -1, int(end), -1)


def _attend_expanded(module, query, key, value, attention_mask, scaling):
    """The model's own way, for a mask of any form."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    k, v = type(module).expand_kv(module, key, value)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return sdpa(module, query, k, v, attention_mask, scaling=scaling, is_causal=False)


def _leave_latent(latent, k_rope):
    return latent, k_rope


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
        if type(part.kv_b_proj) is not torch.nn.Linear:
            raise ValueError(
                f"kv_b_proj must be a torch.nn.Linear, got {type(part.kv_b_proj).__name__}: "
                "quantized or wrapped weights cannot be absorbed"
            )
    return parts
