"""How large each operation is measured, and the least it has to move and to compute."""

from typing import NamedTuple


class Work(NamedTuple):
    """The least an operation has to do."""

    bytes: int  # every input read once, every output written once
    flops: int  # of the operation's definition: an addition or a multiplication is one


# (B, T, H, N). The first is the table of the README, the last runs in a moment on any machine.
SHAPES = {
    "wkv5": {
        "table": (8, 4096, 64, 64),
        "small": (8, 1024, 32, 64),
        "quick": (2, 16, 2, 64),
    },
    "wkv6": {
        "table": (8, 4096, 64, 64),
        "one text": (1, 4096, 64, 64),
        "long text": (1, 32768, 64, 64),
        "short": (1, 54, 32, 64),
        "quick": (2, 16, 2, 64),
    },
}
BACKWARD = "-backward"  # after an operation's name: the forward and the backward pass together
TRITON = "-triton"  # after an operation's name: the same, for the ladder of the lessons in Triton
SHAPES["wkv6" + TRITON] = SHAPES["wkv6"]
SHAPES |= {name + BACKWARD: shapes for name, shapes in SHAPES.items()}
DECODE = "wkv6-decode"  # one token for each of B texts, the state read and written
SHAPES[DECODE] = {
    "table": (8, 1, 64, 64),
    "many texts": (256, 1, 64, 64),
    "quick": (2, 1, 2, 64),
}
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of an element


def operation_of(record):
    """The operation that a record's name starts with: "wkv6-backward" of "wkv6-backward-small"."""
    return max((name for name in SHAPES if f"{record}-".startswith(f"{name}-")), key=len)


def untooled(operation):
    """ "wkv6-backward" of "wkv6-triton-backward": what is computed, by whatever means."""
    return operation.replace(TRITON, "")


def work(operation, shape, dtype):
    """The fewest bytes and the flops of `operation`.

    Args:
        operation: a key of `SHAPES`.
        shape: (B, T, H, N), each at least 1.
        dtype: a key of `DTYPES`: the type of r, k, v, o and, in WKV-6, w. Parameters and states
            are float32.

    Raises:
        ValueError: the operation, the shape or the dtype is not known here.
    """
    if untooled(operation) not in _WORK:
        raise ValueError(f"operation is {operation!r}, needs one of {', '.join(_WORK)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
    if len(shape) != 4 or any(n < 1 for n in shape):
        raise ValueError(f"shape is {tuple(shape)}, needs four positive numbers B, T, H, N")
    return _WORK[untooled(operation)](*shape, DTYPES[dtype])


def _wkv5(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: r, k, v read and o written, 4·B·T·H·N elements; w and u, 2·H·N float32.
    flops: per token, head and element of the N × N state, k·v, u·kv + s, o + r·(…) and
    decay·s + kv: 1 + 2 + 2 + 2 = 7.
    """
    return Work(4 * B * T * H * N * itemsize + 2 * H * N * 4, 7 * B * T * H * N * N)


def _wkv6(B, T, H, N, itemsize):
    """As WKV-5, and w has as many elements as r: 5·B·T·H·N; u is the parameter left."""
    return Work(5 * B * T * H * N * itemsize + H * N * 4, 7 * B * T * H * N * N)


def _with_gradients(forward, tensors, parameters):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input.
    flops: per token, head and element of the state, 7 forward; S again, 3; dr, dk, dv and dw, 2
    each; r·do and decay·dS + r·do, 3: 21.
    """

    def work(B, T, H, N, itemsize):
        elements = B * T * H * N
        least = forward(B, T, H, N, itemsize).bytes
        least += (2 * tensors + 1) * elements * itemsize + 2 * parameters * H * N * 4
        return Work(least, 21 * elements * N)

    return work


def _wkv6_decode(B, T, H, N, itemsize):
    """As WKV-6, with a float32 state of N × N per head read and written."""
    forward = _wkv6(B, T, H, N, itemsize)
    return Work(forward.bytes + 2 * B * H * N * N * 4, forward.flops)


_WORK = {
    DECODE: _wkv6_decode,
    "wkv5": _wkv5,
    "wkv6": _wkv6,
    "wkv5" + BACKWARD: _with_gradients(_wkv5, 3, 2),
    "wkv6" + BACKWARD: _with_gradients(_wkv6, 4, 1),
}
