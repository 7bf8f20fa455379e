"""What the least work of an operation is told in, and what does its arithmetic."""

from typing import NamedTuple

MULTIPLY_ADDS, TENSOR_CORES = "multiply-adds", "tensor cores"


class Work(NamedTuple):
    """The least an operation has to do."""

    bytes: int  # every input read once, every output written once
    flops: int  # of the operation's definition: an addition or a multiplication is one
