"""Kimi's delta attention on WKV-7: what is measured of it; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.entries import BOTH, FLA, Headline, Operation, Peer, RecordPlan
from rwkv_lessons.operations.work import Work

SHAPE = (2, 8192, 64, 128)
BESIDE_FLA = "--peers --dtype bfloat16 --shape 2,8192,64,128"


def least_kda(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: q, k, v and beta read and o written in the dtype, g read in float32.
    flops: per token, head and element of the state, kᵀS 2, decay·S 1, + βk (v - kᵀS) 2, q·S 2: 7.
    """
    return Work(B * T * H * (4 * N * itemsize + itemsize + 4 * N), 7 * B * T * H * N * N)


def least_kda_with_gradients(B, T, H, N, itemsize):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input.
    flops: 7 forward; S again, 5; dq, dg, the gradients of βk, α∘k and v - kᵀS, 2 each; dS + qᵀdo 2,
    decay·dS 1, + what goes through kᵀS 2: 27.
    """
    backward = 7 * N * itemsize + 2 * itemsize + 8 * N
    forward = least_kda(B, T, H, N, itemsize).bytes
    return Work(forward + B * T * H * backward, 27 * B * T * H * N * N)


KDA = Operation(
    "kda",
    "time Kimi's delta attention, as FLA's chunk_kda is called",
    "wkv7",
    shapes=(SHAPE,),
    quick=(2, 16, 2, 64),
    work=least_kda,
    inputs="rwkv_lessons.inputs:kda_inputs",
    reference="rwkv_lessons.interop.fla_kda:chunk_kda",  # in float64: by matrix products in torch
    functions={"chunk_kda": "rwkv_lessons.interop.fla_kda:chunk_kda"},
    dtypes=("bfloat16",),
    records=(RecordPlan("kda-peers", f"kda {BESIDE_FLA}", 240, needs="fla"),),
    peers={"fla chunk": Peer("fla", FLA, "fla_kda_chunk", "decays bounded by -5")},
    calls="rwkv_lessons.wkv7.kda.calls:calls",
    verified_as={"chunk_kda": "wkv7"},
)

KDA_BACKWARD = replace(
    KDA,
    name="kda-backward",
    says="time both passes of Kimi's delta attention",
    timed=BOTH,
    work=least_kda_with_gradients,
    # dβ is of the sum of k's and b's gradients, each rounded to bfloat16, which nearly cancel: wy
    # has 0.9 to 1.9e-2 with 1 to 8 heads of up to 4,096 tokens, and the kernels, in the
    # interpreter, 1.2 times that.
    slack=3.0,
    records=(RecordPlan("kda-backward-peers", f"kda-backward {BESIDE_FLA}", 360, needs="fla"),),
    peers={"fla chunk": Peer("fla", FLA, "fla_kda_chunk_gradients", "decays bounded by -5")},
    headline=Headline(
        "KDA forward and backward",
        "kda-backward-peers",
        "chunk_kda",
        "fla chunk",
        "FLA, chunked",
        SHAPE,
    ),
)
