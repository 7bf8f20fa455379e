from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)

def use_latent_mla(model: M) -> M: ...
def undo_latent_mla(model: M) -> M: ...
