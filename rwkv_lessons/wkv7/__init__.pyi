from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..runtime.devices import Gpu

METHODS: dict[str, Callable[..., tuple[Tensor, Tensor]]]

def method_for(
    device: str,
    dtype: torch.dtype,
    T: int,
    heads: int,
    size: int,
    gradients: bool,
    gpu: Gpu | None = ...,
    alike: bool = True,
    packed: bool = False,
) -> str: ...
def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    decay: Literal["log", "raw", "clamp"] = "log",
) -> tuple[Tensor, Tensor]: ...
def wkv7_chunked(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    decay: Literal["log", "raw", "clamp"] = "log",
) -> tuple[Tensor, Tensor]: ...
def wkv7_fused(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    decay: Literal["log", "raw", "clamp"] = "log",
) -> tuple[Tensor, Tensor]: ...
def wkv7_recurrent(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    decay: Literal["log", "raw", "clamp"] = "log",
) -> tuple[Tensor, Tensor]: ...
def wkv7_reference(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv7_wy(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv7_step(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    *,
    scale: float = 1.0,
    decay: Literal["log", "raw", "clamp"] = "log",
) -> Tensor: ...
