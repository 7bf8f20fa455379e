from collections.abc import Callable

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
    packed: bool = False,
    gpu: Gpu | None = ...,
) -> str: ...
def wkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    raw_decay: bool = False,
) -> tuple[Tensor, Tensor]: ...
def wkv6_chunked(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    raw_decay: bool = False,
) -> tuple[Tensor, Tensor]: ...
def wkv6_cuda(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv6_doubling(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv6_recurrent(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    s0: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float = 1.0,
    raw_decay: bool = False,
) -> tuple[Tensor, Tensor]: ...
def wkv6_reference(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv6_step(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    state: Tensor,
    *,
    scale: float = 1.0,
    raw_decay: bool = False,
) -> Tensor: ...
