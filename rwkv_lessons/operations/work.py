"""What the least work of an operation is told in, and what does its arithmetic."""

from typing import NamedTuple

MULTIPLY_ADDS, TENSOR_CORES = "multiply-adds", "tensor cores"


class Work(NamedTuple):
    """The least an operation has to do."""

    bytes: int  # every input read once, every output written once
    flops: int  # of the operation's definition: an addition or a multiplication is one


MOST_DRAFTS, PROMPTS = 8, 16  # tokens of a sequence that are drafts, and prompts of a mixed batch


def served_lengths(S, T):
    """The tokens of each of S sequences: T of each or, if T is no draft's, of prompts beside ones.

    Then there are 16 prompts, fewer if S is less, of T / 8 to T tokens.
    """
    if T <= MOST_DRAFTS:
        return [T] * S
    prompts = min(PROMPTS, S)
    step = (T - T // 8) / max(1, prompts - 1)
    return [T - round(i * step) for i in range(prompts)] + [1] * (S - prompts)
