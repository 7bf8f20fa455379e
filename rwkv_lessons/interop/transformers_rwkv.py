"""The functions inside the Hugging Face models of RWKV-5 and RWKV-6, answered by `wkv5` and `wkv6`.

The models' own files (`modeling_rwkv5.py`, `modeling_rwkv6.py`, loaded with trust_remote_code) mix
time in a Python loop over tokens. One line replaces that loop in a model that is already loaded:

    patch_rwkv(model)

and `use_latent_mla(model)` does the same for the models with multi-head latent attention, see
transformers_mla.py. Nothing here imports the transformers package before it is used.
"""

import sys
from functools import partial

import torch

from ..runtime.arguments import check_shape
from ..sequences.decays import log_decay
from ..wkv5 import wkv5
from ..wkv6 import wkv6
from .arguments import check_sequences, raw_decay
from .patch import Patch
from .transformers_mla import undo_latent_mla, use_latent_mla

__all__ = [
    "patch_rwkv",
    "rwkv5_linear_attention",
    "rwkv6_linear_attention",
    "undo_latent_mla",
    "use_latent_mla",
]


def rwkv5_linear_attention(training, receptance, key, value, time_decay, time_first, state):
    """Mixes time as RWKV-5 does, as `modeling_rwkv5.py` of the Hugging Face models calls it.

    For each head, with row vectors, a state S of K × V, and d = exp(-exp(time_decay)):

        out[t] = receptance[t] (S + (time_first · key[t])ᵀ value[t])
        S      = diag(d) S + key[t]ᵀ value[t]

    Args:
        training: passed by the model and not used; there is one path, with gradients.
        receptance, key, value: `[B, T, C]`, any floating dtype, C = H·N, T from 1 (one new token).
        time_decay: `[H, N]` or `[C]`; any number: at -inf the state is kept, from 7 upwards it is
            forgotten at once.
        time_first: bonus of the current token, `[H, N]`.
        state: before the first token, `[B, H, K, V]` (keys × values); zeros if None. It is not
            written to, and may be afterwards: gradients do not read it again.

    Returns:
        out `[B, T, H, N]` (not `[B, T, C]`) and the state after the last token `[B, H, K, V]`, both
        float32 as in the original. Through out all tensors have gradients, over all tokens; the
        original cuts them at each token, and time_decay gets none. The state has none, as there:
        the model writes it into a buffer that all its layers share.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://huggingface.co/RWKV/rwkv-5-world-1b5 (`modeling_rwkv5.py`).
    """
    _, _, C = _check(receptance, key, value, time_decay, time_first, state)
    H, N = time_first.shape
    if time_decay.shape not in ((H, N), (C,)):
        raise ValueError(
            f"time_decay must be [H, N] = [{H}, {N}] or [C] = [{C}], got {list(time_decay.shape)}"
        )
    w = log_decay(time_decay, torch.float32).reshape(H, N)
    return _in_float32(wkv5, receptance, key, value, w, time_first, state)


def rwkv6_linear_attention(training, receptance, key, value, time_decay, time_first, state):
    """Mixes time as RWKV-6 does, as `modeling_rwkv6.py` of the Hugging Face models calls it.

    For each head, with row vectors, a state S of K × V, and d[t] = exp(-exp(time_decay[t])):

        out[t] = receptance[t] (S + (time_first · key[t])ᵀ value[t])
        S      = diag(d[t]) S + key[t]ᵀ value[t]

    Args:
        training: passed by the model and not used; there is one path, with gradients.
        receptance, key, value: `[B, T, C]`, any floating dtype, C = H·N, T from 1 (one new token).
        time_decay: `[B, T, C]`; any number: at -inf the state is kept, from 7 upwards it is
            forgotten at once.
        time_first: bonus of the current token, `[H, N]`.
        state: before the first token, `[B, H, K, V]` (keys × values); zeros if None. It is not
            written to, and may be afterwards: gradients do not read it again.

    Returns:
        out `[B, T, H, N]` (not `[B, T, C]`) and the state after the last token `[B, H, K, V]`, both
        float32 as in the original. Through out all tensors have gradients, over all tokens; the
        original cuts them at each token, and time_decay gets none. The state has none, as there:
        the model writes it into a buffer that all its layers share.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://huggingface.co/RWKV/rwkv-6-world-1b6 (`modeling_rwkv6.py`).
    """
    B, T, C = _check(receptance, key, value, time_decay, time_first, state)
    H, N = time_first.shape
    check_shape("time_decay", time_decay, "B, T, C", (B, T, C))
    w = raw_decay(time_decay).reshape(B, T, H, N)
    return _in_float32(partial(wkv6, raw_decay=True), receptance, key, value, w, time_first, state)


FUNCTIONS = {
    "RWKV5_linear_attention": rwkv5_linear_attention,  # in what the World models' converter writes
    "rwkv5_linear_attention": rwkv5_linear_attention,
    "rwkv6_linear_attention": rwkv6_linear_attention,
}


def patch_rwkv(model):
    """Makes a loaded RWKV-5 or RWKV-6 model call this module's functions; `undo()` takes it back.

    The models look their function up by name in the Python module that defines them. It is replaced
    there: for this model and for every other model made from the same file.

    Args:
        model: a `torch.nn.Module`, the model itself or anything that holds it.

    Returns:
        A `Patch`: `patch.undo()` restores what was replaced, as does the end of a
        `with patch_rwkv(model):` block. Of several patches each has to be undone.

    Raises:
        TypeError: model is not a `torch.nn.Module`.
        ValueError: no part of it is defined next to such a function: not an RWKV-5 or RWKV-6 model.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    classes = {cls for part in model.modules() for cls in type(part).__mro__}
    files = [sys.modules.get(name) for name in sorted({cls.__module__ for cls in classes})]
    places = [(file, name) for file in files for name in FUNCTIONS if hasattr(file, name)]
    if not places:
        raise ValueError(
            f"model must be an RWKV-5 or RWKV-6 model in Hugging Face's layout, got "
            f"{type(model).__name__}: no Python module that defines a part of it has a function "
            f"{' or '.join(FUNCTIONS)}"
        )
    return Patch([(file, name, FUNCTIONS[name]) for file, name in places])


def _check(receptance, key, value, time_decay, time_first, state):
    parameters = {"time_decay": time_decay, "time_first": time_first}
    if state is not None:
        parameters["state"] = state
    B, T, C = check_sequences(receptance, key, value, **parameters)
    if time_first.ndim != 2 or time_first.numel() != C:
        raise ValueError(
            f"time_first must be [H, N] with H·N = C = {C}, got {list(time_first.shape)}"
        )
    if state is not None:
        H, N = time_first.shape
        check_shape("state", state, "B, H, K, V", (B, H, N, N))
    return B, T, C


def _in_float32(operation, receptance, key, value, w, u, state):
    """Calls wkv5 or wkv6 in float32; only the output has gradients."""
    B, T, _ = receptance.shape
    H, N = u.shape
    r, k, v = (x.float().reshape(B, T, H, N) for x in (receptance, key, value))
    if state is not None:
        # The model writes the next state into this one's memory, which the gradients still need.
        state = state.float().clone() if torch.is_grad_enabled() else state.float()
    o, s1 = operation(r, k, v, w, u.float(), state)
    return o.contiguous(), s1.detach()
