"""RWKV-6: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.checks import (
    ALL_DTYPES,
    ANYWHERE,
    FEW,
    HALF,
    HOPPER,
    STEP_SHAPES,
    TILED,
    WKV_SHAPES,
    Checks,
    Combinations,
)
from rwkv_lessons.operations.entries import (
    BOTH,
    BOTH_DTYPES,
    FLA,
    GLUON,
    TABLE_SHAPE,
    TRITON,
    Headline,
    Ladder,
    Operation,
    Peer,
    RecordPlan,
    Rung,
    own,
)
from rwkv_lessons.operations.work import Work, served_lengths

WKV6_MODULE = "rwkv_lessons.wkv6"
SMALLER = (
    "--shape 1,4096,64,64 --shape 1,32768,64,64 --shape 1,54,32,64 --methods wkv6,cuda,chunked"
)
# Halves alike, and heads of several blocks.
SIZES = "--shape 8,4096,64,64 --shape 4,4096,32,128 --methods wkv6 --dtype float16,bfloat16"
BESIDE_TILELANG = "--peers --dtype bfloat16 --methods 'wkv6,fla chunk,fla tilelang'"
BESIDE_PEERS = "--peers --dtype bfloat16 --methods 'wkv6,chunked,cuda,fla chunk,fla recurrent'"
RECURRENCE = ("recurrence, finished in CUDA", "cuda")  # token by token: chunks have to beat it
DECAY_FROM_DATA = Rung("08 decay from data", "08_decay_from_data", "kernel")
FUSED_RECURRENT = Rung(
    "13 fused recurrent",
    "13_fused_recurrent",
    "kernel",
    TRITON,
    function="forward",
    dtypes=BOTH_DTYPES,
)
CHUNKED_KERNEL = Rung(
    "16 the chunked kernel", "16_the_chunked_kernel", "kernel", TRITON,
    function="forward", dtypes=BOTH_DTYPES, tensor_cores=True,
)  # fmt: skip
BACKWARD_PASS = Rung(
    "09 the backward pass",
    "09_the_backward_pass",
    "backward_sweep",
    function="gradients",
    after=DECAY_FROM_DATA,
)
# Each ladder in Triton starts from the last rung in CUDA.
TRITON_RUNGS = (DECAY_FROM_DATA, FUSED_RECURRENT, CHUNKED_KERNEL)
TRITON_BACKWARD_RUNGS = (
    BACKWARD_PASS,
    Rung("14 recurrent gradients", "14_recurrent_gradients", "backward_sweep", TRITON,
         function="gradients", dtypes=BOTH_DTYPES, after=FUSED_RECURRENT),
    Rung("17 chunked gradients", "17_chunked_gradients", "backward_sweep", TRITON,
         function="gradients", dtypes=BOTH_DTYPES, after=CHUNKED_KERNEL, tensor_cores=True),
)  # fmt: skip

# What verify looks at.
WKV6_OPTIONS = {
    "plain": {},  # no state before, and none asked for: what a training step does
    "state": {"state": True},  # s0 given, and gradients through s1
    "scale": {"scale": 0.3},
    "raw": {"raw_decay": True},
    "packed": {"packed": True},  # cu_seqlens; sequences of 0 and of 1 token among them
    "w float32": {"w_dtype": "float32"},
    "all but packed": {"state": True, "scale": 0.3, "raw_decay": True},
    "all": {"state": True, "scale": 0.3, "raw_decay": True, "packed": True},
}
EVERY = ("plain", "state", "scale", "raw", "packed", "all but packed", "all")
# The scale is a constant of kernels for tiles, which are compiled for each: it comes with others.
BUT_SCALE = tuple(option for option in EVERY if option != "scale")
STEPS = ("plain", "scale", "raw", "all")
CHECKS = Checks(
    "wkv6",
    problem="recurrence:Recurrence",
    shapes=WKV_SHAPES,
    options=WKV6_OPTIONS,
    rows=(
        Combinations(("doubling",), ("float64",), ("short",), EVERY, needs=ANYWHERE),
        Combinations(("reference",), ALL_DTYPES, ("short",), FEW, needs=ANYWHERE),
        Combinations(("doubling", "wkv6"), ALL_DTYPES, ("token",), FEW, needs=ANYWHERE),
        Combinations(("doubling",), ALL_DTYPES, ("short",), EVERY, needs=ANYWHERE),
        # numba compiles for long: dtypes only choose how it loads and stores, sizes its tiles. So
        # each size that has other tiles comes with another dtype. Halves that are scaled, or of raw
        # decays, are float32 to the kernels.
        Combinations(("cuda",), ("float32",), ("small",), EVERY),
        Combinations(("cuda",), ("bfloat16",), ("odd",), ("plain", "packed")),
        Combinations(("cuda",), ("float16",), ("huge",), ("plain", "packed")),
        Combinations(("cuda",), HALF, ("small",), ("all but packed", "all")),
        Combinations(("cuda",), ("float32",), ("many heads",), FEW),
        Combinations(("recurrent",), ALL_DTYPES, ("small",), EVERY),
        Combinations(
            ("recurrent",), ALL_DTYPES, ("token", "odd", "short", "many heads", "huge"), FEW
        ),
        # float16 takes the branches of float32 where it is made into pieces, of bfloat16 elsewhere.
        Combinations(("chunked", "wkv6"), ("float32",), ("small",), EVERY),
        Combinations(("chunked", "wkv6"), ("bfloat16",), ("small",), BUT_SCALE),
        Combinations(("chunked", "wkv6"), ("float16",), ("small",), ("plain", "state", "all")),
        Combinations(("chunked", "wkv6"), ("bfloat16",), ("small",), ("w float32",)),
        Combinations(("chunked",), ALL_DTYPES, ("token", "many heads"), FEW),
        Combinations(("chunked",), TILED, ("segments",), ("all",)),
        Combinations(("chunked",), TILED, ("odd",), ("all",)),
        Combinations(("chunked",), ("float32",), ("large",), ("all",)),
        Combinations(("chunked",), ("bfloat16",), ("many chunks",), BUT_SCALE, needs=HOPPER),
        Combinations(("chunked",), ("float16",), ("many chunks",), FEW, needs=HOPPER),
        Combinations(
            ("chunked",), ("bfloat16",), ("many segments",), ("all but packed",), needs=HOPPER
        ),
        Combinations(("chunked",), ("float16",), ("many segments",), ("plain",), needs=HOPPER),
        Combinations(
            ("chunked",),
            ("bfloat16",),
            ("two segments",),
            ("plain", "all but packed"),
            needs=HOPPER,
        ),
        Combinations(("chunked",), ("bfloat16",), ("many blocks",), ("all",), needs=HOPPER),
        Combinations(("chunked",), ("bfloat16",), ("whole heads",), BUT_SCALE, needs=HOPPER),
        Combinations(("wkv6",), ALL_DTYPES, ("many heads",), FEW),
        Combinations(("wkv6",), ("float32",), ("huge",), ("all",)),
        Combinations(("wkv6",), ("bfloat16",), ("many chunks",), ("plain",), needs=HOPPER),
    ),
    others=Combinations((), ALL_DTYPES, ("short",), FEW),
    repeatable=("cuda", "recurrent", "chunked"),
    few=("many heads", "many chunks", "whole heads"),
    seconds=(
        ("chunked / * / large / *", 25),
        ("chunked / * / many blocks / *", 11),
        ("chunked / * / many segments / *", 6),
        ("chunked / * / many chunks / *", 2),
        ("* / segments / *", 6),
        ("* / token / *", 4),
        ("* / many heads / *", 1),
        ("chunked / float16 / *", 16),
        ("chunked / *", 13),
        ("recurrent / *", 2),
    ),
)
STEP = Checks(
    "wkv6_step",
    problem="recurrence:Recurrence",
    shapes=STEP_SHAPES,
    options={
        "plain": {"state": True},
        "scale": {"state": True, "scale": 0.3},
        "raw": {"state": True, "raw_decay": True},
        "all": {"state": True, "scale": 0.3, "raw_decay": True},
    },
    rows=(
        Combinations(("wkv6_step",), ALL_DTYPES, ("odd",), STEPS, needs=ANYWHERE, gradients=False),
        Combinations(
            ("wkv6_step",), ALL_DTYPES, ("few heads", "many heads"), STEPS, gradients=False
        ),
    ),
    repeatable=("wkv6_step",),
    few=("many heads",),
)

PACKED = {"state": True, "packed": True, "raw_decay": True}
SERVING = Checks(
    "wkv6_serving",
    problem="serving:Serving6",
    shapes={"small": (2, 200, 3, 64, 64), "odd": (1, 100, 2, 100, 36)},
    options={
        "plain": PACKED,
        "all": PACKED | {"pool": "float16", "stochastic": True, "w0": True, "scale": 0.3},
    },
    rows=(
        Combinations(("wkv6_serving",), ALL_DTYPES, ("odd",), FEW, needs=ANYWHERE, gradients=False),
        Combinations(("wkv6_serving",), ALL_DTYPES, ("small",), FEW, gradients=False),
    ),
    repeatable=("wkv6_serving",),
    seconds=(("*", 12),),
)


def least_wkv6(B, T, H, N, itemsize):
    """As WKV-5, and w has as many elements as r: 5·B·T·H·N; u is the parameter left."""
    return Work(5 * B * T * H * N * itemsize + H * N * 4, 7 * B * T * H * N * N)


def least_wkv6_with_gradients(B, T, H, N, itemsize):
    """As of WKV-5, with 9·B·T·H·N elements more than the forward pass, and u alone twice."""
    least = least_wkv6(B, T, H, N, itemsize).bytes + 9 * B * T * H * N * itemsize + 2 * H * N * 4
    return Work(least, 21 * B * T * H * N * N)


def least_wkv6_decode(B, T, H, N, itemsize):
    """As WKV-6, with a float32 state of N × N per head read and written."""
    forward = least_wkv6(B, T, H, N, itemsize)
    return Work(forward.bytes + 2 * B * H * N * N * 4, forward.flops)


def least_wkv6_serving(S, T, H, N, itemsize):
    """float16 states read and written; of a large T 16 prompts beside single tokens, see WKV-7."""
    forward = least_wkv6(1, sum(served_lengths(S, T)), H, N, itemsize)
    return Work(forward.bytes + 2 * S * H * N * N * 2, forward.flops)


WKV6 = Operation(
    "wkv6",
    "time the methods of wkv6",
    "wkv6",
    shapes=(TABLE_SHAPE,),
    quick=(2, 16, 2, 64),
    work=least_wkv6,
    inputs="rwkv_lessons.inputs:rwkv6_inputs",
    reference=f"{WKV6_MODULE}:wkv6_reference",
    rung_arguments="rwkv_lessons.inputs:wkv6_rung_arguments",
    tensor_cores=("chunked", "wkv6", "fla chunk"),  # wkv6 may choose: the lower roof is its own
    ladders=(
        Ladder("wkv6", (DECAY_FROM_DATA,), "cuda"),
        Ladder("wkv6-triton", TRITON_RUNGS, "chunked", dtypes=BOTH_DTYPES, beside=RECURRENCE),
    ),
    records=(
        # Without the reference: half a second a call.
        RecordPlan("wkv6", "wkv6 --methods wkv6,chunked,recurrent,cuda,doubling", 90),
        RecordPlan("wkv6-small", f"wkv6 {SMALLER} --dtype float32,bfloat16", 90),
        RecordPlan("wkv6-sizes", f"wkv6 {SIZES}"),
        RecordPlan(
            "wkv6-short",
            "wkv6 --dtype float16 --shape 1,54,32,64 --methods wkv6,recurrent,chunked,cuda",
        ),
        RecordPlan(
            "wkv6-triton-few",
            "ladder wkv6-triton --shape 4,1024,4,64"
            " --methods 08_decay_from_data,13_fused_recurrent",
            table=None,
        ),
        own("wkv6-first", "first"),
        own("wkv6-race", "race", 120, "race"),
        RecordPlan("wkv6-peers", f"wkv6 {BESIDE_PEERS}", 240, needs="fla"),
        RecordPlan("wkv6-tilelang", f"wkv6 {BESIDE_TILELANG}", 360, needs="tilelang"),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_chunk"),
        "fla recurrent": Peer("fla", FLA, "fla_recurrent"),
        "fla tilelang": Peer("tilelang", "tilelang", "fla_tilelang", "FLA's kernels in it"),
    },
    headline=Headline(
        "RWKV-6 forward", "wkv6-peers", "wkv6", "fla chunk", "FLA, chunked", TABLE_SHAPE
    ),
    public=("wkv6", "__getattr__"),
    checks=CHECKS,
    calls="rwkv_lessons.wkv6.calls:calls",
)

IN_GLUON = {"tool": GLUON, "dtypes": ("bfloat16",), "tensor_cores": True}
PRODUCTS = "solutions/20_products_in_flight.py"
AS_IN_20 = f"{PRODUCTS}::forward"  # launches all of them
OF_19 = IN_GLUON | {"made_of": (AS_IN_20, f"{PRODUCTS}::kernel", f"{PRODUCTS}::A_WAIT_BEHIND_EACH")}
OF_20 = IN_GLUON | {"made_of": (AS_IN_20,)}
OF_21 = IN_GLUON | {"made_of": (AS_IN_20, "solutions/21_the_finished_kernel.py::kernel")}
HOPPER_RUNGS = (
    CHUNKED_KERNEL,
    Rung("19 tiles by TMA, fetched and waited for", "19_copies_in_flight", function="one_stage",
         **OF_19),
    Rung("19 copies in flight", "19_copies_in_flight", function="two_stages", **OF_19),
    Rung("20 products in flight", "20_products_in_flight", function="together", **OF_20),
    Rung("21 r and k split in two", "21_the_finished_kernel", function="two_pieces", **OF_21),
    Rung("21 packed conversions", "21_the_finished_kernel", function="pairs", **OF_21),
    Rung("21 masks in shared memory", "21_the_finished_kernel", function="masks", **OF_21),
    Rung("21 a warp that copies", "21_the_finished_kernel", function="producer", **OF_21),
)  # fmt: skip
# The lessons' kernels believe that decays are tame.
WKV6_HOPPER = replace(
    WKV6,
    name="wkv6-hopper",
    says="time the methods of wkv6 where no decay is strong",
    inputs="rwkv_lessons.inputs:rwkv6_tame_inputs",
    ladders=(Ladder("wkv6-hopper", HOPPER_RUNGS, "chunked", 60, ("bfloat16",), shape=TABLE_SHAPE),),
    records=(
        RecordPlan(  # 128 programs, each with an SM of its own: nothing else hides a wait
            "wkv6-hopper-alone",
            "ladder wkv6-hopper --shape 2,4096,64,64"
            " --methods 19_copies_in_flight.two_stages,20_products_in_flight.together",
            table=None,
        ),
    ),
    peers={},
    headline=None,
)

# Its own rows: a method and how its decays are.
WKV6_DECAYS = Operation(
    "wkv6-decays",
    "time wkv6 and both its passes with mild, strong and mixed decays",
    "wkv6",
    shapes=(TABLE_SHAPE,),
    quick=(1, 33, 2, 64),
    work=None,
    timed="Forward, or both passes",
    command="decays:command",
    dtypes=(),
    records=(
        RecordPlan("wkv6-decays", "wkv6-decays --methods wkv6", 60, "decays"),
        RecordPlan(
            "wkv6-decays-peers",
            "wkv6-decays --methods 'wkv6,fla chunk'",
            240,
            "decays",
            needs="fla",
        ),
    ),
)

WKV6_BACKWARD = replace(
    WKV6,
    name="wkv6-backward",
    says="time both passes of wkv6",
    timed=BOTH,
    inputs="rwkv_lessons.inputs:rwkv6_training_inputs",
    work=least_wkv6_with_gradients,
    reference=f"{WKV6_MODULE}:wkv6_doubling",  # wkv6_reference would keep every state
    skipped=("reference",),
    ladders=(
        Ladder("wkv6-backward", (BACKWARD_PASS,), "cuda"),
        Ladder(
            "wkv6-triton-backward",
            TRITON_BACKWARD_RUNGS,
            "chunked",
            180,
            dtypes=BOTH_DTYPES,
            beside=RECURRENCE,
        ),
    ),
    records=(
        # Without recurrent: its reverse sweep is for few tokens.
        RecordPlan("wkv6-backward", "wkv6-backward --methods wkv6,chunked,cuda", 180),
        RecordPlan("wkv6-backward-small", f"wkv6-backward {SMALLER} --dtype bfloat16", 180),
        RecordPlan("wkv6-backward-sizes", f"wkv6-backward {SIZES}"),
        RecordPlan("wkv6-backward-peers", f"wkv6-backward {BESIDE_PEERS}", 360, needs="fla"),
        RecordPlan(
            "wkv6-backward-tilelang", f"wkv6-backward {BESIDE_TILELANG}", 360, needs="tilelang"
        ),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_chunk_gradients"),
        "fla recurrent": Peer("fla", FLA, "fla_recurrent_gradients"),
        "fla tilelang": Peer(
            "tilelang", "tilelang", "fla_tilelang_gradients", "FLA's kernels in it"
        ),
    },
    headline=replace(
        WKV6.headline, says="RWKV-6 forward and backward", record="wkv6-backward-peers"
    ),
)

WKV6_DECODE = Operation(
    "wkv6-decode",
    "time one token of wkv6 for each sequence, the state read and written",
    "wkv6",
    shapes=((8, 1, 64, 64), (256, 1, 64, 64)),
    quick=(2, 1, 2, 64),
    work=least_wkv6_decode,
    inputs="rwkv_lessons.inputs:wkv6_decode_inputs",
    reference=f"{WKV6_MODULE}:wkv6_reference",
    compared=2,  # the state as well
    tensor_cores=(),
    one_token=True,
    records=(
        RecordPlan(
            "wkv6-decode",
            "wkv6-decode --peers --dtype bfloat16 --shape 8,1,64,64 --shape 256,1,64,64",
            90,
        ),
    ),
    peers={"fla recurrent": Peer("fla", FLA, "fla_step", "another state")},
    headline=Headline(
        "RWKV-6, one token", "wkv6-decode", "wkv6_step", "fla recurrent", "FLA", (256, 1, 64, 64)
    ),
    public=("wkv6_step",),
    checks=STEP,
)

WKV6_SERVING = Operation(
    "wkv6-serving",
    "time serving calls of wkv6: single tokens, prompts beside single tokens",
    "wkv6",
    shapes=(*((S, 1, 64, 64) for S in (1, 8, 32, 256, 960)), (216, 4096, 64, 64)),
    quick=(3, 1, 2, 64),
    work=least_wkv6_serving,
    letters="S, T, H, N",
    command="serving:command",
    dtypes=("bfloat16",),
    records=(
        own("wkv6-serving", "wkv6-serving", 180, table="serving"),
        RecordPlan("wkv6-serving-peers", "wkv6-serving --peers", 300, table=None, needs="fla"),
    ),
    peers={"fla": Peer("fla", FLA, "fla_serving", "no pool")},
    public=("serving.wkv6_serving",),
    checks=SERVING,
    calls="rwkv_lessons.wkv6.serving.calls:calls",
)
