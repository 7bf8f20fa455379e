"""The time mixing of RWKV-7 models of the `rwkv` package (PyPI), answered by `wkv7`.

    import os
    os.environ["RWKV_V7_ON"] = "1"  # the package reads it when it is imported
    import rwkv.model
    from rwkv_lessons.interop.rwkv_package import patch_rwkv_package

    patch_rwkv_package()  # before the first model is made
    model = rwkv.model.RWKV(model="RWKV-x070-…", strategy="cpu fp32")

TorchScript compiles the class when its first model is made, and keeps the functions that it finds
then for all later models of the process.
"""

import sys

import torch
from torch import Tensor

from ..models import rwkv7
from ..wkv7 import wkv7
from .arguments import turned

ONE, SEVERAL = "RWKV_x070_TMix_one", "RWKV_x070_TMix_seq"


class PackagePatch:
    """The package's functions replaced; `undo()`, or the end of a `with` block, restores them."""

    def __init__(self, module):
        self.module, self.originals = (
            module,
            {name: getattr(module, name) for name in (ONE, SEVERAL)},
        )
        setattr(module, ONE, mix_one)
        setattr(module, SEVERAL, mix_several)

    def undo(self):
        for name, function in self.originals.items():
            setattr(self.module, name, function)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()


def patch_rwkv_package():
    """Makes RWKV-7 models of the `rwkv` package take `wkv7`, if none has been made before.

    Returns:
        A `PackagePatch`, with `undo()`.

    Raises:
        RuntimeError: rwkv.model is not imported, or was imported without RWKV_V7_ON=1.

    Source: https://pypi.org/project/rwkv (0.8.32).
    """
    module = sys.modules.get("rwkv.model")
    if module is None:
        raise RuntimeError(
            'rwkv.model is not imported: set os.environ["RWKV_V7_ON"] = "1", then import it'
        )
    if not hasattr(module, SEVERAL):
        raise RuntimeError(
            "rwkv.model was imported without RWKV_V7_ON=1, so it has no RWKV-7: set it before the"
            " first import"
        )
    return PackagePatch(module)


def time_mix(
    layer, H, N, x, x_before, v_first, state, x_r, x_w, x_k, x_v, x_a, x_g, w0, w1, w2, a0, a1, a2,
    v0, v1, v2, g1, g2, k_k, k_a, r_k, R, K, V, out, norm_weight, norm_bias,
):  # fmt: skip
    """Time mixing of one layer over the tokens x `[T, C]`; matrices are transposed, `[in, out]`.

    Args:
        x_before: the token before the first; state: `[H, N, N]` (values × keys), float32.

    Returns:
        The output, the last token, the state after it, and v_first.
    """
    after = None

    def recurrence(*tokens):
        nonlocal after
        o, after = wkv7(*(y[None] for y in tokens), turned(state[None]), decay="clamp")
        return o

    weights = {"x_r": x_r, "x_w": x_w, "x_k": x_k, "x_v": x_v, "x_a": x_a, "x_g": x_g}
    weights |= {"w0": w0, "w1": w1, "w2": w2, "a0": a0, "a1": a1, "a2": a2, "v0": v0, "v1": v1}
    weights |= {"v2": v2, "g1": g1, "g2": g2, "k_k": k_k, "k_a": k_a, "r_k": r_k.view(H, N)}
    weights |= {"receptance.weight": R.T, "key.weight": K.T, "value.weight": V.T}
    weights |= {"output.weight": out.T, "ln_x.weight": norm_weight, "ln_x.bias": norm_bias}
    before = torch.cat([x_before[None], x[:-1]])
    first = None if layer == 0 else v_first
    y, v_first = rwkv7.time_mix(weights, x, before, first, recurrence)
    return y, x[-1], turned(after)[0], v_first


# As TorchScript wants them: it calls Python, and has to know the types.


@torch.jit.ignore
def mix_several(
    layer_id: int, H: int, N: int, x: Tensor, x_prev: Tensor, v_first: Tensor, state: Tensor,
    x_r: Tensor, x_w: Tensor, x_k: Tensor, x_v: Tensor, x_a: Tensor, x_g: Tensor,
    w0: Tensor, w1: Tensor, w2: Tensor, a0: Tensor, a1: Tensor, a2: Tensor,
    v0: Tensor, v1: Tensor, v2: Tensor, g1: Tensor, g2: Tensor,
    k_k: Tensor, k_a: Tensor, r_k: Tensor, R_: Tensor, K_: Tensor, V_: Tensor, O_: Tensor,
    ln_w: Tensor, ln_b: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Several tokens, `[T, C]`, with the package's names of arguments."""
    return time_mix(
        layer_id, H, N, x, x_prev, v_first, state, x_r, x_w, x_k, x_v, x_a, x_g, w0, w1, w2,
        a0, a1, a2, v0, v1, v2, g1, g2, k_k, k_a, r_k, R_, K_, V_, O_, ln_w, ln_b,
    )  # fmt: skip


@torch.jit.ignore
def mix_one(
    layer_id: int, H: int, N: int, x: Tensor, x_prev: Tensor, v_first: Tensor, state: Tensor,
    x_r: Tensor, x_w: Tensor, x_k: Tensor, x_v: Tensor, x_a: Tensor, x_g: Tensor,
    w0: Tensor, w1: Tensor, w2: Tensor, a0: Tensor, a1: Tensor, a2: Tensor,
    v0: Tensor, v1: Tensor, v2: Tensor, g1: Tensor, g2: Tensor,
    k_k: Tensor, k_a: Tensor, r_k: Tensor, R_: Tensor, K_: Tensor, V_: Tensor, O_: Tensor,
    ln_w: Tensor, ln_b: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """One token, `[C]`, with the package's names of arguments."""
    o, last, state, v_first = time_mix(
        layer_id, H, N, x[None], x_prev, v_first, state, x_r, x_w, x_k, x_v, x_a, x_g, w0, w1, w2,
        a0, a1, a2, v0, v1, v2, g1, g2, k_k, k_a, r_k, R_, K_, V_, O_, ln_w, ln_b,
    )  # fmt: skip
    return o[0], last, state, v_first[0] if v_first.ndim == 2 else v_first
