from torch import Tensor

def attn_backstepping_longhead(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def attn_backstepping_smallhead(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def attn_chunked_cuda(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def attn_chunked_cuda_varlen(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None,
    cu_seqlens: Tensor,
) -> tuple[Tensor, Tensor]: ...
def attn_triton_bighead(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    s0: Tensor | None = None,
    dot_prec: str = "fp32",
) -> tuple[Tensor, Tensor]: ...
def attn_triton_bighead_bf16(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def attn_triton_bighead_fp16(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def attn_triton_bighead_fp32(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def load_backstepping_longhead(head_size: int | None = None, *_: object, **__: object) -> None: ...
def load_backstepping_smallhead(head_size: int | None = None, *_: object, **__: object) -> None: ...
def load_chunked_cuda(head_size: int | None = None, *_: object, **__: object) -> None: ...
def load_chunked_cuda_varlen(head_size: int | None = None, *_: object, **__: object) -> None: ...
