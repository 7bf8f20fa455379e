from torch import Tensor

from .fla_kda import chunk_gated_delta_rule as chunk_gated_delta_rule
from .fla_kda import chunk_kda as chunk_kda
from .fla_kda import fused_recurrent_gated_delta_rule as fused_recurrent_gated_delta_rule
from .fla_kda import fused_recurrent_kda as fused_recurrent_kda
from .fla_rwkv7 import chunk_rwkv7 as chunk_rwkv7
from .fla_rwkv7 import fused_mul_recurrent_rwkv7 as fused_mul_recurrent_rwkv7
from .fla_rwkv7 import fused_recurrent_rwkv7 as fused_recurrent_rwkv7
from .patch import Patch

def fused_recurrent_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]: ...
def chunk_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]: ...
def patch_fla() -> Patch: ...
