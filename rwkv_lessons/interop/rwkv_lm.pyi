from torch import Tensor

def RWKV7_CLAMPW_CUDA(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, HEAD_SIZE: int = 64
) -> Tensor: ...
def RUN_CUDA_RWKV7g(
    q: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, HEAD_SIZE: int = 64
) -> Tensor: ...
def RWKV7_STATE_CLAMPW_CUDA(
    s0: Tensor,
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    HEAD_SIZE: int = 64,
) -> Tensor: ...
def RWKV7_STATE_PASSING_CLAMPW_CUDA(
    s0: Tensor,
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    HEAD_SIZE: int = 64,
) -> tuple[Tensor, Tensor]: ...
