"""RWKV-5: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.checks import (
    ALL_DTYPES,
    ANYWHERE,
    WKV_SHAPES,
    Checks,
    Combinations,
)
from rwkv_lessons.operations.entries import (
    BOTH,
    FLA,
    NUMBA,
    TABLE_SHAPE,
    Headline,
    Ladder,
    Operation,
    Peer,
    Rung,
    own,
)
from rwkv_lessons.operations.work import Work

SAME_DECAY = "w expanded to [B, T, H, N]"

CHECKS = Checks(
    "wkv5",
    problem="recurrence:Recurrence",
    shapes=WKV_SHAPES | {"token": (2, 1, 3, 100, 36)},  # heads as "odd" has them: its kernels
    options={"plain": {}, "state": {"state": True}},
    rows=(
        Combinations(("chunked",), ("float64",), ("short",), ("state",), needs=ANYWHERE),
        Combinations(("reference",), ALL_DTYPES, ("short",), ("plain", "state"), needs=ANYWHERE),
        Combinations(("chunked",), ALL_DTYPES, ("token",), ("plain", "state"), needs=ANYWHERE),
        Combinations(("chunked",), ALL_DTYPES, ("short",), ("plain", "state"), needs=ANYWHERE),
        # One kernel per size of head and dtype, for any T; compiling it is what takes the time.
        Combinations(("wkv5",), ALL_DTYPES, ("token", "odd"), ("plain", "state"), needs=ANYWHERE),
        Combinations(("cuda",), ALL_DTYPES, ("odd",), ("plain", "state")),
    ),
    others=Combinations((), ALL_DTYPES, ("short",), ("plain", "state")),
    repeatable=("cuda",),
    few=("odd",),
)


def least_wkv5(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: r, k, v read and o written, 4·B·T·H·N elements; w and u, 2·H·N float32.
    flops: per token, head and element of the N × N state, k·v, u·kv + s, o + r·(…) and
    decay·s + kv: 1 + 2 + 2 + 2 = 7.
    """
    return Work(4 * B * T * H * N * itemsize + 2 * H * N * 4, 7 * B * T * H * N * N)


def least_wkv5_with_gradients(B, T, H, N, itemsize):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input:
    7·B·T·H·N elements and twice the parameters more.
    flops: per token, head and element of the state, 7 forward; S again, 3; dr, dk, dv and dw, 2
    each; r·do and decay·dS + r·do, 3: 21.
    """
    least = (
        least_wkv5(B, T, H, N, itemsize).bytes + 7 * B * T * H * N * itemsize + 2 * 2 * H * N * 4
    )
    return Work(least, 21 * B * T * H * N * N)


WKV5 = Operation(
    "wkv5",
    "time the methods of wkv5",
    "wkv5",
    shapes=(TABLE_SHAPE,),
    quick=(2, 16, 2, 64),
    work=least_wkv5,
    inputs="rwkv_lessons.inputs:rwkv5_inputs",
    reference="rwkv_lessons.wkv5:wkv5_reference",
    rung_arguments="rwkv_lessons.inputs:wkv5_rung_arguments",
    skipped=("wkv5",),
    tensor_cores=("fla chunk",),
    ladders=(
        Ladder(
            "wkv5",
            (
                Rung("03 atomic baseline", "03_atomic_baseline", "kernel", NUMBA, "ref", True),
                Rung("04 drop the atomics", "04_drop_the_atomics", "kernel", NUMBA, "v1a"),
                Rung("05 float4", "05_float4", "kernel", NUMBA, "v1b"),
                Rung("06 block size", "06_block_size", "kernel", NUMBA, "v3", swept=True),
                Rung("06 … with all registers", "06_block_size", "generous"),
                Rung("07 shared memory", "07_shared_memory", "shared", NUMBA, "v1d"),
                Rung("07 … and the state", "07_shared_memory", "state_in_shared", NUMBA, "v1c"),
            ),
            finished="cuda",
        ),
    ),
    records=(own("wkv5-profile", "profile wkv5", table=None), own("wkv5", "wkv5", 120)),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_chunk", SAME_DECAY),
        "fla recurrent": Peer("fla", FLA, "fla_recurrent", SAME_DECAY),
        "flash_rwkv": Peer("flash_rwkv", "flash-rwkv", "flash_rwkv"),
    },
    headline=Headline(
        "RWKV-5 forward, float32", "wkv5-ladder", "cuda", "03_atomic_baseline", "lesson 03",
        TABLE_SHAPE,
    ),
    torch_loop=("01_five_loops", "torch_loop"),
    public=("wkv5", "__getattr__"),
    checks=CHECKS,
    calls="rwkv_lessons.wkv5.calls:calls",
)  # fmt: skip

WKV5_BACKWARD = replace(
    WKV5,
    name="wkv5-backward",
    says="time both passes of wkv5",
    timed=BOTH,
    work=least_wkv5_with_gradients,
    reference="rwkv_lessons.wkv5:wkv5_chunked",  # wkv5_reference would keep every state
    skipped=("wkv5", "reference"),
    ladders=(),
    records=(own("wkv5-backward", "wkv5-backward", table=None),),
    peers={},
    headline=None,
    torch_loop=None,
)
