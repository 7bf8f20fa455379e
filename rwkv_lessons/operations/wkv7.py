"""RWKV-7: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations import work as least
from rwkv_lessons.operations.entries import (
    BOTH,
    BOTH_DTYPES,
    FLA,
    TABLE_SHAPE,
    TORCH,
    TRITON,
    Headline,
    Ladder,
    Operation,
    Peer,
    Plan,
    Rung,
    own,
)

# The shapes of wind_rwkv's table, width 4096, and heads of 64 at its last one.
WKV7_SHAPES = (TABLE_SHAPE, (8, 4096, 32, 128), (8, 4096, 16, 256))
WKV7_LONG = ((1, 32768, 16, 256), (1, 32768, 64, 64))
OF_BATCHES, OF_LONG = (
    " ".join(f"--shape {','.join(map(str, shape))}" for shape in shapes)
    for shapes in (WKV7_SHAPES, WKV7_LONG)
)
BESIDE_FLA_7 = (
    "--peers --dtype bfloat16 --shape 8,4096,64,64 "
    "--methods 'wkv7,chunked,backstepping,recurrent,fla chunk'"
)
DELTA_RULE = Rung("22 the delta rule", "22_delta_rule", "kernel", TRITON)
STEPPING_BACK = Rung(
    "23 stepping back", "23_stepping_back", "gradients", TRITON, both_passes=True
)  # fmt: skip
CHUNKED_WKV7 = Rung(
    "24 chunked RWKV-7", "24_chunked_rwkv7", "kernel", TRITON, tensor_cores=True
)  # fmt: skip
MEASURED = {"finished": "chunked", "limit_s": 60, "dtypes": BOTH_DTYPES, "shape": TABLE_SHAPE}

WKV7 = Operation(
    "wkv7",
    "time the methods of wkv7",
    "wkv7",
    shapes=WKV7_SHAPES + WKV7_LONG,
    quick=(2, 16, 2, 64),
    work=least.wkv7,
    inputs="rwkv_lessons.inputs:rwkv7_inputs",
    like=3,
    reference="rwkv_lessons.wkv7:wkv7_wy",  # 32,768 steps in Python would take minutes
    rung_arguments="rwkv_lessons.inputs:wkv7_rung_arguments",
    methods={
        "reference": TORCH,
        "wy": TORCH,
        "recurrent": TRITON,
        "backstepping": TRITON,
        "chunked": TRITON,
        "wkv7": TRITON,
    },
    tensor_cores=("chunked", "wkv7", "fla chunk"),  # see WKV6
    ladders=(Ladder("wkv7", (DELTA_RULE, CHUNKED_WKV7), **MEASURED),),
    # Without the methods in torch: up to a second a call.
    records=(
        Plan("wkv7", f"wkv7 --methods wkv7 --dtype bfloat16 {OF_BATCHES}"),
        Plan("wkv7-long", f"wkv7 --methods wkv7 --dtype bfloat16 {OF_LONG}"),
        Plan("wkv7-peers", f"wkv7 {BESIDE_FLA_7}", 240, needs="fla"),
    ),
    peers={"fla chunk": Peer("fla", FLA, "fla_rwkv7_chunk", "as its layer calls it")},
    headline=Headline(
        "RWKV-7 forward", "wkv7-peers", "wkv7", "fla chunk", "FLA, chunks", TABLE_SHAPE
    ),
    public=("wkv7", "__getattr__"),
)

WKV7_BACKWARD = replace(
    WKV7,
    name="wkv7-backward",
    says="time both passes of wkv7",
    timed=BOTH,
    work=least.wkv7_with_gradients,
    methods={name: tool for name, tool in WKV7.methods.items() if name != "reference"},
    ladders=(Ladder("wkv7-backward", (STEPPING_BACK,), **MEASURED),),
    records=(
        Plan("wkv7-backward", f"wkv7-backward --methods wkv7 --dtype bfloat16 {OF_BATCHES}"),
        Plan("wkv7-backward-long", f"wkv7-backward --methods wkv7 --dtype bfloat16 {OF_LONG}"),
        Plan("wkv7-backward-peers", f"wkv7-backward {BESIDE_FLA_7}", 360, needs="fla"),
    ),
    peers={"fla chunk": Peer("fla", FLA, "fla_rwkv7_chunk_gradients", "as its layer calls it")},
    headline=replace(
        WKV7.headline, says="RWKV-7 forward and backward", record="wkv7-backward-peers"
    ),
)

WKV7_DECODE = Operation(
    "wkv7-decode",
    "time one token of wkv7 for each sequence, the state read and written",
    "wkv7",
    shapes=((1, 1, 64, 64), (8, 1, 64, 64), (256, 1, 64, 64)),
    quick=(2, 1, 2, 64),
    work=least.wkv7_decode,
    inputs="rwkv_lessons.inputs:wkv7_decode_inputs",
    like=3,
    reference="rwkv_lessons.wkv7:wkv7_reference",
    compared=2,  # the state as well
    tensor_cores=(),
    one_token=True,
    records=(own("wkv7-decode", "wkv7-decode"),),
    public=("wkv7_step",),
)
