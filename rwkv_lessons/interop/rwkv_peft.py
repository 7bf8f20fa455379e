"""The RWKV-7 calls of RWKV-PEFT, answered by `wkv7`; and states in files, both ways.

RWKV-PEFT's calls with a state have another order than those without: r, k, v, w, a, b. A w in the
place of k would be computed with silently.
"""

import re

import torch

from ..runtime.arguments import check_count
from ..wkv7 import wkv7
from .arguments import HEAD_SIZE
from .rwkv_lm import RUN_CUDA_RWKV7g

__all__ = [
    "RUN_CUDA_RWKV7g",
    "RUN_RWKV7_INFCTX",
    "RUN_RWKV7_STATE",
    "states_from_file",
    "states_to_file",
]
NAME = "blocks.{}.att.time_state"


def RUN_RWKV7_INFCTX(r, k, v, w, a, b, s, HEAD_SIZE=HEAD_SIZE):
    """Mixes time from a state, as RWKV-PEFT calls it where flash-linear-attention computes.

    Args:
        r, k, v, w, a, b: `[B, T, C]` with C = H · HEAD_SIZE, in this order; w is raw, the decay
            exp(-exp(w)).
        s: state `[B, H, N, N]` (keys × values), or `[H, N, N]` for all sequences.

    Returns:
        o `[B, T, H, N]`, not flat, and the state after the last token, float32 (keys × values).

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/JL-er/RWKV-PEFT.
    """
    check_count("HEAD_SIZE", HEAD_SIZE)
    for name, x in {"r": r, "k": k, "v": v, "w": w, "a": a, "b": b}.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 3 or x.shape[2] % HEAD_SIZE:
            raise ValueError(
                f"{name} must be [B, T, C] with C a multiple of HEAD_SIZE = {HEAD_SIZE}, "
                f"got {list(x.shape)}"
            )
    heads = [x.unflatten(2, (-1, HEAD_SIZE)) for x in (r, w, k, v, a, b)]
    if isinstance(s, torch.Tensor) and s.ndim == 3:
        s = s.expand(len(r), -1, -1, -1)
    return wkv7(*heads, s, decay="raw")


RUN_RWKV7_STATE = RUN_RWKV7_INFCTX


def states_from_file(saved):
    """The states of all layers, `[layers, H, K, V]` (keys × values), float32.

    Args:
        saved: what `torch.load` returns of a state file: "blocks.0.att.time_state" and so on, each
            `[H, V, K]`, as state tuning writes and RWKV-Runner reads them. Other entries are left
            out.

    Raises:
        ValueError: a layer is missing, or has another shape.
    """
    pattern = re.compile(NAME.replace(".", r"\.").format(r"(\d+)"))
    found = {int(m[1]): x for name, x in saved.items() if (m := pattern.fullmatch(name))}
    if sorted(found) != list(range(len(found))) or not found:
        raise ValueError(
            f"saved must have {NAME.format(0)} and so on, one for each layer, got layers"
            f" {sorted(found)}"
        )
    shapes = {tuple(x.shape) for x in found.values()}
    if len(shapes) > 1 or len(found[0].shape) != 3:
        raise ValueError(f"states must be [H, V, K], all of one shape, got {sorted(shapes)}")
    return torch.stack([found[i].float().mT for i in range(len(found))])


def states_to_file(states, dtype=torch.float32):
    """The reverse of `states_from_file`: a dict for `torch.save`."""
    if not isinstance(states, torch.Tensor) or states.ndim != 4:
        got = list(states.shape) if isinstance(states, torch.Tensor) else type(states).__name__
        raise ValueError(f"states must be [layers, H, K, V], got {got}")
    return {NAME.format(i): x.mT.to(dtype).contiguous() for i, x in enumerate(states)}
