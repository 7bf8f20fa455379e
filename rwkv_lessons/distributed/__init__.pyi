from collections.abc import Callable

from torch import Tensor
from torch.distributed import ProcessGroup

class DeadRank(RuntimeError): ...

def sequence_parallel(
    operation: Callable[..., tuple[Tensor, Tensor]],
    group: ProcessGroup | None = None,
    *,
    timeout: float = 60.0,
) -> Callable[..., tuple[Tensor, Tensor]]: ...
def split_tokens(T: int, ranks: int, first: float = 1.0) -> list[int]: ...
