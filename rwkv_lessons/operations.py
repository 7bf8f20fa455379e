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
# (B, N, H, R, P, V): sequences, tokens in the cache of each, heads, rank, sizes of rope and value.
MINICPM3, DEEPSEEK_V3, ITS_8TH_PART = (40, 256, 32, 64), (128, 512, 64, 128), (16, 512, 64, 128)
MLA_DECODE = {
    "table": [
        *[(*x, *MINICPM3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 1024), (64, 16384))],
        *[(*x, *DEEPSEEK_V3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 4096))],
        (64, 4096, *ITS_8TH_PART),
    ],
    "quick": [(2, 70, 3, 32, 16, 16)],
}
LETTERS = {  # of a shape that is not B, T, H, N
    "mla-decode": "B, N, H, R, P, V",
    "mla-ladder": "B, N, H, K, R, P, V",
    "mla-prefill": "B, T, H, K, R, P, V",
}
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of an element


def operation_of(record):
    """The operation that a record's name starts with: "wkv6-backward" of "wkv6-backward-small"."""
    return max((name for name in {*SHAPES, *_WORK} if f"{record}-".startswith(f"{name}-")), key=len)


def untooled(operation):
    """ "wkv6-backward" of "wkv6-triton-backward": what is computed, by whatever means."""
    return operation.replace(TRITON, "")


def work(operation, shape, dtype):
    """The fewest bytes and the flops of `operation`.

    Args:
        operation: a key of `SHAPES` or of `LETTERS`.
        shape: (B, T, H, N), each at least 1, or what `LETTERS` has for the operation.
        dtype: a key of `DTYPES`: the type of r, k, v, o and, in WKV-6, w. Parameters and states
            are float32.

    Raises:
        ValueError: the operation, the shape or the dtype is not known here.
    """
    if untooled(operation) not in _WORK:
        raise ValueError(f"operation is {operation!r}, needs one of {', '.join(_WORK)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
    letters = LETTERS.get(operation, "B, T, H, N")
    count = len(letters.split())
    if len(shape) != count or any(n < 1 for n in shape):
        raise ValueError(f"shape is {tuple(shape)}, needs {count} positive numbers {letters}")
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


def _mla_decode(B, N, H, R, P, V, itemsize):
    """One query token a sequence, absorbed, and w_v.

    bytes: the cache, B·N·(R + P); queries, H·(R + P), and o, H·V, of B sequences; w_v, H·V·R; the
    log-sum-exps, B·H float32.
    flops: R + P multiply-adds for a score and R for its part of the sum, B·H·N of each; B·H·R·V.
    """
    elements = B * N * (R + P) + B * H * (R + P + V) + H * V * R
    return Work(elements * itemsize + 4 * B * H, 2 * B * H * (N * (2 * R + P) + R * V))


def _mla_ladder(B, N, H, K, R, P, V, itemsize):
    """The same with w_k, which absorbs a query of K numbers, and without log-sum-exps."""
    elements = B * N * (R + P) + B * H * (K + P + V) + H * (K + V) * R
    return Work(elements * itemsize, 2 * B * H * (N * (2 * R + P) + R * (K + V)))


def _mla_prefill(B, T, H, K, R, P, V, itemsize):
    """Every token a query, in the expanded form.

    flops: keys and values of B·T tokens, and the pairs of a query and a token that it sees.
    """
    elements = B * T * (H * (K + P + V) + R + P) + H * (K + V) * R
    pairs = B * H * T * (T + 1) // 2
    return Work(elements * itemsize, 2 * pairs * (K + P + V) + 2 * B * T * R * H * (K + V))


_WORK = {
    DECODE: _wkv6_decode,
    "mla-decode": _mla_decode,
    "mla-ladder": _mla_ladder,
    "mla-prefill": _mla_prefill,
    "wkv5": _wkv5,
    "wkv6": _wkv6,
    "wkv5" + BACKWARD: _with_gradients(_wkv5, 3, 2),
    "wkv6" + BACKWARD: _with_gradients(_wkv6, 4, 1),
}
