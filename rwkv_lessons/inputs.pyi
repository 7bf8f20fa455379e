from typing import Any, NamedTuple

import torch
from torch import Tensor

class RWKV5Inputs(NamedTuple):
    r: Tensor
    k: Tensor
    v: Tensor
    w: Tensor
    u: Tensor

class RWKV6Inputs(NamedTuple):
    r: Tensor
    k: Tensor
    v: Tensor
    w: Tensor
    u: Tensor

class RWKV7Inputs(NamedTuple):
    r: Tensor
    w: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor

class KDAInputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

def rwkv5_inputs(
    B: int,
    T: int,
    H: int = 4,
    N: int = 64,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layer: int = 6,
    n_layer: int = 12,
    offset: int = 0,
    seed: int = 0,
) -> RWKV5Inputs: ...
def rwkv6_inputs(
    B: int,
    T: int,
    H: int = 4,
    N: int = 64,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layer: int = 6,
    n_layer: int = 12,
    offset: int = 0,
    seed: int = 0,
) -> RWKV6Inputs: ...
def rwkv6_tame_inputs(B: int, T: int, H: int = 4, N: int = 64, **options: Any) -> RWKV6Inputs: ...
def rwkv6_training_inputs(
    B: int, T: int, H: int = 4, N: int = 64, *, dtype: torch.dtype = ..., **options: Any
) -> RWKV6Inputs: ...
def rwkv7_inputs(
    B: int,
    T: int,
    H: int = 4,
    N: int = 64,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layer: int = 6,
    n_layer: int = 12,
    offset: int = 0,
    seed: int = 0,
) -> RWKV7Inputs: ...
def kda_inputs(
    B: int,
    T: int,
    H: int = 4,
    N: int = 64,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layer: int = 6,
    n_layer: int = 12,
    offset: int = 0,
    seed: int = 0,
) -> KDAInputs: ...
def rwkv5_decay(C: int, depth: float = 0.5) -> Tensor: ...
def rwkv5_bonus(C: int, depth: float = 0.5) -> Tensor: ...
def rwkv7_decay(C: int, depth: float = 0.5) -> Tensor: ...
def timex_inputs(
    B: int,
    C: int,
    T: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    offset: int = 0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]: ...
def wkv6_decode_inputs(*args: Any, **options: Any) -> tuple[Tensor, ...]: ...
def wkv7_decode_inputs(*args: Any, **options: Any) -> tuple[Tensor, ...]: ...
def words() -> list[str]: ...
def tokens() -> tuple[Tensor, int]: ...
def __getattr__(name: str) -> Any: ...  # what the bench asks for
