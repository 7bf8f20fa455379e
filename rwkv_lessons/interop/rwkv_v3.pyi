from torch import Tensor

def time_x(w: Tensor, k: Tensor, B: int, C: int, T: int, eps: float) -> Tensor: ...

class TimeX:
    @staticmethod
    def apply(w: Tensor, k: Tensor, B: int, C: int, T: int, eps: float) -> Tensor: ...
