from torch import Tensor, nn

from .patch import Patch
from .transformers_mla import undo_latent_mla as undo_latent_mla
from .transformers_mla import use_latent_mla as use_latent_mla

def rwkv5_linear_attention(
    training: bool,
    receptance: Tensor,
    key: Tensor,
    value: Tensor,
    time_decay: Tensor,
    time_first: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]: ...
def rwkv6_linear_attention(
    training: bool,
    receptance: Tensor,
    key: Tensor,
    value: Tensor,
    time_decay: Tensor,
    time_first: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]: ...
def patch_rwkv(model: nn.Module) -> Patch: ...
