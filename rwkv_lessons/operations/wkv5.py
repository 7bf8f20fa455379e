"""RWKV-5: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations import work as least
from rwkv_lessons.operations.entries import (
    BOTH,
    FLA,
    NUMBA,
    TABLE_SHAPE,
    TORCH,
    Headline,
    Ladder,
    Operation,
    Peer,
    Rung,
    own,
)

SAME_DECAY = "w expanded to [B, T, H, N]"

WKV5 = Operation(
    "wkv5",
    "time the methods of wkv5",
    "wkv5",
    shapes=(TABLE_SHAPE,),
    quick=(2, 16, 2, 64),
    work=least.wkv5,
    inputs="rwkv_lessons.inputs:rwkv5_inputs",
    reference="rwkv_lessons.wkv5:wkv5_reference",
    rung_arguments="rwkv_lessons.inputs:wkv5_rung_arguments",
    methods={"reference": TORCH, "chunked": TORCH, "cuda": NUMBA},
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
)  # fmt: skip

WKV5_BACKWARD = replace(
    WKV5,
    name="wkv5-backward",
    says="time both passes of wkv5",
    timed=BOTH,
    work=least.wkv5_with_gradients,
    reference="rwkv_lessons.wkv5:wkv5_chunked",  # wkv5_reference would keep every state
    methods={"chunked": TORCH, "cuda": NUMBA},
    ladders=(),
    records=(own("wkv5-backward", "wkv5-backward", table=None),),
    peers={},
    headline=None,
    torch_loop=None,
)
