from torch import Tensor

def rwkv5_cuda_linear_attention(
    receptance: Tensor,
    key: Tensor,
    value: Tensor,
    time_decay: Tensor,
    time_first: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]: ...
def rwkv6_cuda_linear_attention(
    receptance: Tensor,
    key: Tensor,
    value: Tensor,
    time_decay: Tensor,
    time_first: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]: ...

class Rwkv5LinearAttention:
    @staticmethod
    def apply(
        receptance: Tensor,
        key: Tensor,
        value: Tensor,
        time_decay: Tensor,
        time_first: Tensor,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]: ...

class Rwkv6LinearAttention:
    @staticmethod
    def apply(
        receptance: Tensor,
        key: Tensor,
        value: Tensor,
        time_decay: Tensor,
        time_first: Tensor,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]: ...
