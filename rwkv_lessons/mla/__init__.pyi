from collections.abc import Callable

from torch import Tensor

METHODS: dict[str, Callable[..., tuple[Tensor, Tensor]]]

def break_even(K: int, R: int, V: int) -> float: ...
def fp8_cache(latent: Tensor, k_rope: Tensor) -> Tensor: ...
def fp8_cache_parts(cache: Tensor, P: int = 64) -> tuple[Tensor, Tensor, Tensor]: ...
def mla(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k: Tensor | None,
    w_v: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
    scales: Tensor | None = None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def mla_absorbed(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k: Tensor | None,
    w_v: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
    scales: Tensor | None = None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def mla_decode(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k: Tensor | None,
    w_v: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
    scales: Tensor | None = None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def mla_prefill(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k: Tensor | None,
    w_v: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def mla_reference(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k: Tensor | None,
    w_v: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
    scales: Tensor | None = None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
