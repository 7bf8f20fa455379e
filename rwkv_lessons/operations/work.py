"""The least that each operation has to move and to compute: functions of a shape and an itemsize.

An entry of the table (__init__.py) names one of these. The letters are those of the entry.
"""

from typing import NamedTuple

MULTIPLY_ADDS, TENSOR_CORES = "multiply-adds", "tensor cores"  # what does the arithmetic


class Work(NamedTuple):
    """The least an operation has to do."""

    bytes: int  # every input read once, every output written once
    flops: int  # of the operation's definition: an addition or a multiplication is one


def wkv5(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: r, k, v read and o written, 4·B·T·H·N elements; w and u, 2·H·N float32.
    flops: per token, head and element of the N × N state, k·v, u·kv + s, o + r·(…) and
    decay·s + kv: 1 + 2 + 2 + 2 = 7.
    """
    return Work(4 * B * T * H * N * itemsize + 2 * H * N * 4, 7 * B * T * H * N * N)


def wkv6(B, T, H, N, itemsize):
    """As WKV-5, and w has as many elements as r: 5·B·T·H·N; u is the parameter left."""
    return Work(5 * B * T * H * N * itemsize + H * N * 4, 7 * B * T * H * N * N)


def wkv5_with_gradients(B, T, H, N, itemsize):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input:
    7·B·T·H·N elements and twice the parameters more.
    flops: per token, head and element of the state, 7 forward; S again, 3; dr, dk, dv and dw, 2
    each; r·do and decay·dS + r·do, 3: 21.
    """
    least = wkv5(B, T, H, N, itemsize).bytes + 7 * B * T * H * N * itemsize + 2 * 2 * H * N * 4
    return Work(least, 21 * B * T * H * N * N)


def wkv6_with_gradients(B, T, H, N, itemsize):
    """As of WKV-5, with 9·B·T·H·N elements more than the forward pass, and u alone twice."""
    least = wkv6(B, T, H, N, itemsize).bytes + 9 * B * T * H * N * itemsize + 2 * H * N * 4
    return Work(least, 21 * B * T * H * N * N)


def wkv6_decode(B, T, H, N, itemsize):
    """As WKV-6, with a float32 state of N × N per head read and written."""
    forward = wkv6(B, T, H, N, itemsize)
    return Work(forward.bytes + 2 * B * H * N * N * 4, forward.flops)


def timex(B, C, T, itemsize):
    """The sum as defined.

    bytes: k read and o written, 2·B·C·T elements, and w, C·T.
    flops: token t adds t + 1 products, B·C·T·(T + 1) / 2 of 2 each.
    """
    return Work((2 * B + 1) * C * T * itemsize, B * C * T * (T + 1))


def timex_with_gradients(B, C, T, itemsize):
    """The backward pass reads k, do and w and writes dk and dw; both are sums as long as o's."""
    forward = timex(B, C, T, itemsize)
    return Work(forward.bytes + (3 * B + 2) * C * T * itemsize, 3 * forward.flops)


def wkv7(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: r, w, k, v, a, b read and o written, 7·B·T·H·N elements.
    flops: per token, head and element of the state, a·S 2, decay·S 1, + bᵀz 2, + kᵀv 2, r·S 2: 9.
    """
    return Work(7 * B * T * H * N * itemsize, 9 * B * T * H * N * N)


def wkv7_with_gradients(B, T, H, N, itemsize):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input:
    13·B·T·H·N elements more.
    flops: 9 forward; S again, 7; dr, dk, dv, da, db, dw and dz, 2 each; dS + rᵀdo 2, decay·dS 1,
    + aᵀdz 2: 35.
    """
    return Work(20 * B * T * H * N * itemsize, 35 * B * T * H * N * N)


def wkv7_decode(B, T, H, N, itemsize):
    """As WKV-7, with a float32 state of N × N per head read and written."""
    forward = wkv7(B, T, H, N, itemsize)
    return Work(forward.bytes + 2 * B * H * N * N * 4, forward.flops)


def mla_decode(B, N, H, R, P, V, itemsize):
    """One query token a sequence, absorbed, and w_v.

    bytes: the cache, B·N·(R + P); queries, H·(R + P), and o, H·V, of B sequences; w_v, H·V·R; the
    log-sum-exps, B·H float32.
    flops: R + P multiply-adds for a score and R for its part of the sum, B·H·N of each; B·H·R·V.
    """
    elements = B * N * (R + P) + B * H * (R + P + V) + H * V * R
    return Work(elements * itemsize + 4 * B * H, 2 * B * H * (N * (2 * R + P) + R * V))


def mla_ladder(B, N, H, K, R, P, V, itemsize):
    """The same with w_k, which absorbs a query of K numbers, and without log-sum-exps."""
    elements = B * N * (R + P) + B * H * (K + P + V) + H * (K + V) * R
    return Work(elements * itemsize, 2 * B * H * (N * (2 * R + P) + R * (K + V)))


def mla_prefill(B, T, H, K, R, P, V, itemsize):
    """Every token a query, in the expanded form.

    flops: keys and values of B·T tokens, and the pairs of a query and a token that it sees.
    """
    elements = B * T * (H * (K + P + V) + R + P) + H * (K + V) * R
    pairs = B * H * T * (T + 1) // 2
    return Work(elements * itemsize, 2 * pairs * (K + P + V) + 2 * B * T * R * H * (K + V))
