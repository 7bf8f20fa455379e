"""The RWKV-7 calls of RWKV-PEFT, answered by `wkv7`; and states in files, both ways.

RWKV-PEFT's calls with a state have another order than those without: r, k, v, w, a, b. A w in the
place of k would be computed with silently. The state of one call is keys × values, of the other
values × keys.
"""

import re

import torch

from ..runtime.arguments import check_shape, check_tensor
from ..wkv7 import wkv7
from .arguments import HEAD_SIZE, heads_of
from .rwkv_lm import RUN_CUDA_RWKV7g

__all__ = [
    "RUN_CUDA_RWKV7g",
    "RUN_RWKV7_INFCTX",
    "RUN_RWKV7_STATE",
    "states_from_file",
    "states_to_file",
]
NAME = "blocks.{}.att.time_state"


def RUN_RWKV7_INFCTX(r, k, v, w, a, b, s, HEAD_SIZE=HEAD_SIZE, decay="raw"):
    """Mixes time from a state for each sequence, as RWKV-PEFT calls it to train on long texts.

    Args:
        r, k, v, w, a, b: `[B, T, C]` with C = H · HEAD_SIZE, in this order.
        s: state `[B, H, N, N]` (keys × values); zeros if None.
        decay: what w is: "raw", the decay is exp(-exp(w)); or "clamp", the logit, as their models
            give it since January 2026 where the environment has WKV=cuda.

    Returns:
        o `[B, T, H, N]`, not flat, and the state after the last token, float32 (keys × values).

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/Joluck/RWKV-PEFT (`rwkvt/operator/rwkvop.py`).
    """
    heads = heads_of(HEAD_SIZE, r=r, w=w, k=k, v=v, a=a, b=b)
    if s is not None:
        B, _, H, N = heads[0].shape
        check_tensor("s", s, r)
        check_shape("s", s, "B, H, N, N", (B, H, N, N))
    return wkv7(*heads, s, decay=decay)


def RUN_RWKV7_STATE(r, k, v, w, a, b, s, HEAD_SIZE=HEAD_SIZE, decay="raw"):
    """Mixes time from one state for all sequences, as RWKV-PEFT calls it to tune that state.

    Args:
        r, k, v, w, a, b, decay: as of `RUN_RWKV7_INFCTX`.
        s: state `[H, N, N]` (values × keys), as the files have it: see `states_from_file`.

    Returns:
        As `RUN_RWKV7_INFCTX`.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    heads = heads_of(HEAD_SIZE, r=r, w=w, k=k, v=v, a=a, b=b)
    B, _, H, N = heads[0].shape
    check_tensor("s", s, r)
    check_shape("s", s, "H, N, N", (H, N, N))
    return wkv7(*heads, s.mT.expand(B, -1, -1, -1), decay=decay)


def states_from_file(saved):
    """The states of all layers, `[layers, H, K, V]` (keys × values), float32.

    Args:
        saved: what `torch.load` returns of a state file: "blocks.0.att.time_state" and so on, each
            `[H, V, K]`, as state tuning writes and RWKV-Runner reads them. Other entries are left
            out.

    Raises:
        TypeError, ValueError: a layer is missing, or is no tensor of that shape.
    """
    if not isinstance(saved, dict):
        raise TypeError(
            f"saved must be a dict, as torch.load returns it of a state file, got"
            f" {type(saved).__name__}"
        )
    pattern = re.compile(NAME.replace(".", r"\.").format(r"(\d+)"))
    layers = {int(m[1]): x for name, x in saved.items() if (m := pattern.fullmatch(name))}
    if sorted(layers) != list(range(len(layers))) or not layers:
        raise ValueError(
            f"saved must have {NAME.format(0)} and so on, one for each layer, got layers"
            f" {sorted(layers)}"
        )
    for i, x in layers.items():
        check_tensor(NAME.format(i), x, layers[0], whose="the first layer")
    shapes = {tuple(x.shape) for x in layers.values()}
    if len(shapes) > 1 or len(layers[0].shape) != 3:
        raise ValueError(f"states must be [H, V, K], all of one shape, got {sorted(shapes)}")
    return torch.stack([layers[i].float().mT for i in range(len(layers))])


def states_to_file(states, dtype=torch.float32):
    """The reverse of `states_from_file`: a dict for `torch.save`."""
    if not isinstance(states, torch.Tensor) or states.ndim != 4:
        got = list(states.shape) if isinstance(states, torch.Tensor) else type(states).__name__
        raise ValueError(f"states must be [layers, H, K, V], got {got}")
    check_tensor("states", states, states)
    return {NAME.format(i): x.mT.to(dtype).contiguous() for i, x in enumerate(states)}
