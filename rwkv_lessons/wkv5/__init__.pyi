from collections.abc import Callable

from torch import Tensor

METHODS: dict[str, Callable[..., tuple[Tensor, Tensor]]]

def wkv5(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv5_chunked(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv5_cuda(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def wkv5_reference(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
