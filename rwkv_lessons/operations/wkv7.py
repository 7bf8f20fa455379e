"""RWKV-7: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.checks import (
    ALL_DTYPES,
    ANYWHERE,
    FEW,
    STEP_SHAPES,
    WKV_SHAPES,
    Checks,
    Combinations,
)
from rwkv_lessons.operations.entries import (
    BOTH,
    BOTH_DTYPES,
    FLA,
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
from rwkv_lessons.operations.work import MOST_DRAFTS, Work, served_lengths

# The shapes of wind_rwkv's table, width 4096, and heads of 64 at its last one.
WKV7_SHAPES = (TABLE_SHAPE, (8, 4096, 32, 128), (8, 4096, 16, 256))
WKV7_LONG = ((1, 32768, 16, 256), (1, 32768, 64, 64))
OF_BATCHES, OF_LONG = (
    " ".join(f"--shape {','.join(map(str, shape))}" for shape in shapes)
    for shapes in (WKV7_SHAPES, WKV7_LONG)
)
BESIDE_FLA_7 = (
    "--peers --dtype bfloat16 --shape 8,4096,64,64 --methods 'wkv7,chunked,recurrent,fla chunk'"
)
BESIDE_RWKV_LM = BESIDE_FLA_7.replace("chunked,recurrent,fla chunk", "rwkv-lm,rwkv-lm alt")
OF_LOG_DECAY = "for the H100; and 3 S more, for dw of the log decay"
CHUNKS_OF_32 = "FLA's kernels in it, chunks of 32"
BESIDE_TILELANG_7 = BESIDE_FLA_7.replace("chunked,recurrent,fla chunk", "fla chunk,fla tilelang")
DELTA_RULE = Rung("22 the delta rule", "22_delta_rule", "kernel", TRITON, function="forward")
STEPPING_BACK = Rung(
    "23 stepping back", "23_stepping_back", "backward_sweep", TRITON,
    function="gradients", both_passes=True
)  # fmt: skip
CHUNKED_WKV7 = Rung(
    "24 chunked RWKV-7", "24_chunked_rwkv7", "kernel", TRITON,
    function="forward", dtypes=BOTH_DTYPES, tensor_cores=True,
)  # fmt: skip
MEASURED = {"finished": "chunked", "limit_s": 150, "dtypes": BOTH_DTYPES, "shape": TABLE_SHAPE}

# What verify looks at.
OPTIONS = {
    "plain": {},
    "state": {"state": True},
    "scale": {"scale": 0.3},
    "raw": {"decay": "raw"},
    "clamp": {"decay": "clamp"},
    "packed": {"packed": True},
    "w float32": {"w_dtype": "float32"},
    "all but packed": {"state": True, "scale": 0.3, "decay": "raw"},
    "all": {"state": True, "scale": 0.3, "decay": "raw", "packed": True},
}
OF_7 = tuple(OPTIONS)
TOKENS_7 = (15, 16, 17, 1000)  # about a chunk, and many; 1 and 100 have shapes of other names
ABOUT_A_TILE = (63, 64, 65, 128)  # tokens of the fused kernel's tiles
CHECKS = Checks(
    "wkv7",
    problem="delta_rule:DeltaRule",
    shapes={name: WKV_SHAPES[name] for name in ("token", "short", "small", "odd", "huge")}
    | {
        "many heads": (4, 70, 70, 64, 64),  # values in one program
        "long": (1, 2100, 2, 64, 64),  # several programs along one sequence
        **{f"{T} tokens": (2, T, 3, 64, 64) for T in (*TOKENS_7, *ABOUT_A_TILE)},
        "segments": (1, 8192, 3, 64, 64),  # of hopper/cut.py: 4, or 2 with gradients
        "many tiles": (8, 1024, 64, 64, 64),  # of hopper/forward.py, whose programs fill all SMs
        "128": (1, 100, 2, 128, 128),
        "wide": (2, 200, 3, 128, 128),  # several tiles of hopper/wide, the last one not whole
        "wide tiles": (8, 512, 33, 128, 128),  # of its programs, in two waves
        "256": (1, 70, 2, 256, 80),  # the most keys that kernels take
    },
    options=OPTIONS,
    rows=(
        Combinations(("wy",), ("float64",), ("short",), ("plain", "clamp", "all"), needs=ANYWHERE),
        Combinations(("reference", "wy"), ALL_DTYPES, ("short",), FEW, needs=ANYWHERE),
        Combinations(("wkv7",), ALL_DTYPES, ("token",), FEW, needs=ANYWHERE),
        Combinations(("recurrent",), ALL_DTYPES, ("small",), OF_7),
        Combinations(("recurrent",), ALL_DTYPES, ("token", "odd", "256"), FEW),
        # Its kernels take long to compile: every option in bfloat16, and what float32 and float16
        # do otherwise, products in pieces and other tiles, with all options at the same time.
        Combinations(("chunked",), ("bfloat16",), ("small",), OF_7),
        Combinations(("chunked",), ("bfloat16",), ("token", "many heads"), FEW),
        Combinations(("chunked",), ("bfloat16",), ("odd", "128", "256"), ("all",)),
        Combinations(("chunked",), ("float32",), ("short", "256"), ("all",)),
        Combinations(("chunked",), ("bfloat16",), ("long",), ("all but packed", "all")),
        Combinations(("chunked",), ("float32", "float16"), ("small",), ("plain", "clamp", "all")),
        Combinations(("chunked",), ("float32", "float16"), ("token",), FEW),
        Combinations(("chunked",), ("float32",), ("many heads",), FEW),
        Combinations(("chunked",), ALL_DTYPES, tuple(f"{T} tokens" for T in TOKENS_7), ("state",)),
        # On Hopper in bfloat16; all else goes to the chunked kernels.
        Combinations(("fused",), ("bfloat16",), ("small",), OF_7),
        Combinations(("fused",), ("bfloat16",), ("token", "many heads", "many tiles"), FEW),
        Combinations(
            ("fused",), ("bfloat16",), ("segments",), ("state", "clamp", "all but packed")
        ),
        Combinations(
            ("fused",),
            ("bfloat16",),
            tuple(f"{T} tokens" for T in (*TOKENS_7, *ABOUT_A_TILE)),
            ("state",),
        ),
        Combinations(("fused",), ("bfloat16",), ("wide",), OF_7),
        Combinations(("fused",), ("bfloat16",), ("wide tiles",), FEW),
        Combinations(("fused",), ("float32", "float16"), ("small",), ("all",)),
        Combinations(("wkv7",), ("bfloat16",), ("many heads",), FEW, gradients=False),
        Combinations(("wkv7",), ALL_DTYPES, ("small", "many heads"), FEW),
        Combinations(("wkv7",), ("float32",), ("huge",), ("all",)),
    ),
    others=Combinations((), ALL_DTYPES, ("short",), FEW),
    repeatable=("recurrent", "chunked", "fused"),
    seconds=(
        ("chunked / * / 256 / *", 23),
        ("* / token / *", 6),
        ("* / * tokens / *", 2),
        ("* / long / *", 5),
        ("chunked / * / many heads / *", 5),
        ("chunked / *", 15),
        ("fused / *", 15),
        ("recurrent / *", 2),
    ),
)
STEP = Checks(
    "wkv7_step",
    problem="delta_rule:DeltaRule",
    shapes=STEP_SHAPES,
    options={name: {"state": True} | OPTIONS[name] for name in ("plain", "scale", "clamp")}
    | {"all": OPTIONS["all but packed"]},
    rows=(
        Combinations(
            ("wkv7_step",), ALL_DTYPES, ("odd",), ("plain", "all"), needs=ANYWHERE, gradients=False
        ),
        Combinations(
            ("wkv7_step",), ALL_DTYPES, ("few heads", "many heads"),
            ("plain", "scale", "clamp", "all"), gradients=False,
        ),
    ),
    repeatable=("wkv7_step",),
)  # fmt: skip

PACKED = {"state": True, "packed": True, "decay": "clamp"}
HALF_STATE = {"pool": "float16", "stochastic": True}
SERVING = Checks(
    "wkv7_serving",
    problem="serving:Serving7",
    shapes={
        "drafts": (8, 5, 3, 64, 64),
        "small": (2, 200, 3, 64, 64),
        "odd": (1, 100, 2, 100, 36),
        "128": (1, 100, 2, 128, 128),
    },
    options={
        "plain": PACKED,
        "nearest": PACKED | {"pool": "float16"},
        "raw": PACKED | {"decay": "raw"},
        "all": PACKED | HALF_STATE | {"w0": True, "scale": 0.3, "decay": "log"},
        "drafts": {"state": True, "drafts": True, "decay": "clamp"},
        "drafts, all": {"state": True, "drafts": True, "w0": True, "scale": 0.3, "decay": "raw"},
    },
    rows=(
        Combinations(
            ("wkv7_serving",), ALL_DTYPES, ("odd",), ("plain", "all"), needs=ANYWHERE,
            gradients=False,
        ),
        Combinations(
            ("wkv7_serving",), ALL_DTYPES, ("drafts",), ("drafts", "drafts, all"), needs=ANYWHERE,
            gradients=False,
        ),
        Combinations(
            ("wkv7_serving",), ALL_DTYPES, ("small",), ("plain", "nearest", "raw", "all"),
            gradients=False,
        ),
        Combinations(("wkv7_serving",), ("bfloat16",), ("128",), FEW, gradients=False),
    ),
    repeatable=("wkv7_serving",),
    seconds=(("*", 12),),
)  # fmt: skip


def least_wkv7(B, T, H, N, itemsize):
    """Forward from a zero state, without the state afterwards.

    bytes: r, w, k, v, a, b read and o written, 7·B·T·H·N elements.
    flops: per token, head and element of the state, a·S 2, decay·S 1, + bᵀz 2, + kᵀv 2, r·S 2: 9.
    """
    return Work(7 * B * T * H * N * itemsize, 9 * B * T * H * N * N)


def least_wkv7_with_gradients(B, T, H, N, itemsize):
    """Forward and backward pass, from and to zero states.

    bytes: the backward pass reads the inputs and do again, and writes a gradient of each input:
    13·B·T·H·N elements more.
    flops: 9 forward; S again, 7; dr, dk, dv, da, db, dw and dz, 2 each; dS + rᵀdo 2, decay·dS 1,
    + aᵀdz 2: 35.
    """
    return Work(20 * B * T * H * N * itemsize, 35 * B * T * H * N * N)


def least_wkv7_decode(B, T, H, N, itemsize):
    """As WKV-7, with a float32 state of N × N per head read and written."""
    forward = least_wkv7(B, T, H, N, itemsize)
    return Work(forward.bytes + 2 * B * H * N * N * 4, forward.flops)


def least_wkv7_serving(S, T, H, N, itemsize):
    """Of drafts the states are read alone; of others, float16, they are written as well."""
    tokens, drafts = sum(served_lengths(S, T)), 1 < T <= MOST_DRAFTS
    states = S * H * N * N * 2 * (1 if drafts else 2)
    forward = least_wkv7(1, tokens, H, N, itemsize)
    return Work(forward.bytes + states, forward.flops)


WKV7 = Operation(
    "wkv7",
    "time the methods of wkv7",
    "wkv7",
    shapes=WKV7_SHAPES + WKV7_LONG,
    quick=(2, 16, 2, 64),
    work=least_wkv7,
    inputs="rwkv_lessons.inputs:rwkv7_inputs",
    like=3,
    reference="rwkv_lessons.wkv7:wkv7_wy",  # 32,768 steps in Python would take minutes
    rung_arguments="rwkv_lessons.inputs:wkv7_rung_arguments",
    tensor_cores=("chunked", "fused", "wkv7", "fla chunk", "fla tilelang"),  # see WKV6
    ladders=(Ladder("wkv7", (DELTA_RULE, CHUNKED_WKV7), **MEASURED),),
    # Without the methods in torch: up to a second a call.
    records=(
        RecordPlan("wkv7", f"wkv7 --methods wkv7 --dtype bfloat16 {OF_BATCHES}"),
        RecordPlan("wkv7-long", f"wkv7 --methods wkv7 --dtype bfloat16 {OF_LONG}"),
        RecordPlan("wkv7-peers", f"wkv7 {BESIDE_FLA_7}", 240, needs="fla"),
        RecordPlan("wkv7-rwkv-lm", f"wkv7 {BESIDE_RWKV_LM}", 240, needs="RWKV_LM"),
        RecordPlan("wkv7-tilelang", f"wkv7 {BESIDE_TILELANG_7}", 360, needs="tilelang"),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_rwkv7_chunk", "as its layer calls it"),
        "fla tilelang": Peer("tilelang", "tilelang", "fla_rwkv7_tilelang", CHUNKS_OF_32),
        "rwkv-lm": Peer("RWKV_LM", "RWKV-LM", "rwkv_lm", "its kernels for the H100"),
        "rwkv-lm alt": Peer("RWKV_LM", "RWKV-LM", "rwkv_lm_alt", "its others for the H100"),
    },
    headline=Headline(
        "RWKV-7 forward", "wkv7-peers", "wkv7", "fla chunk", "FLA, chunked", TABLE_SHAPE
    ),
    public=("wkv7", "__getattr__"),
    checks=CHECKS,
    calls="rwkv_lessons.wkv7.calls:calls",
)

WKV7_BACKWARD = replace(
    WKV7,
    name="wkv7-backward",
    says="time both passes of wkv7",
    timed=BOTH,
    work=least_wkv7_with_gradients,
    skipped=("reference",),
    ladders=(Ladder("wkv7-backward", (STEPPING_BACK,), **MEASURED),),
    records=(
        RecordPlan("wkv7-backward", f"wkv7-backward --methods wkv7 --dtype bfloat16 {OF_BATCHES}"),
        RecordPlan(
            "wkv7-backward-long", f"wkv7-backward --methods wkv7 --dtype bfloat16 {OF_LONG}"
        ),
        RecordPlan("wkv7-backward-peers", f"wkv7-backward {BESIDE_FLA_7}", 360, needs="fla"),
        RecordPlan(
            "wkv7-backward-rwkv-lm", f"wkv7-backward {BESIDE_RWKV_LM}", 240, needs="RWKV_LM"
        ),
        RecordPlan(
            "wkv7-backward-tilelang", f"wkv7-backward {BESIDE_TILELANG_7}", 360, needs="tilelang"
        ),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_rwkv7_chunk_gradients", "as its layer calls it"),
        "fla tilelang": Peer("tilelang", "tilelang", "fla_rwkv7_tilelang_gradients", CHUNKS_OF_32),
        "rwkv-lm": Peer("RWKV_LM", "RWKV-LM", "rwkv_lm_gradients", OF_LOG_DECAY),
        "rwkv-lm alt": Peer("RWKV_LM", "RWKV-LM", "rwkv_lm_alt_gradients", OF_LOG_DECAY),
    },
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
    work=least_wkv7_decode,
    inputs="rwkv_lessons.inputs:wkv7_decode_inputs",
    like=3,
    reference="rwkv_lessons.wkv7:wkv7_reference",
    compared=2,  # the state as well
    tensor_cores=(),
    one_token=True,
    records=(own("wkv7-decode", "wkv7-decode"),),
    public=("wkv7_step",),
    checks=STEP,
)

WKV7_SERVING = Operation(
    "wkv7-serving",
    "time serving calls of wkv7: single tokens, drafts, prompts beside single tokens",
    "wkv7",
    shapes=(
        *((S, 1, 64, 64) for S in (1, 8, 32, 256, 960)),
        *((S, T, 64, 64) for S in (8, 256) for T in (4, 8)),
        (216, 4096, 64, 64),  # prompts of 512 to 4,096 tokens
    ),
    quick=(3, 1, 2, 64),
    work=least_wkv7_serving,
    letters="S, T, H, N",
    command="serving:command",
    dtypes=("bfloat16",),
    records=(
        own("wkv7-serving", "wkv7-serving", 240, table="serving"),
        RecordPlan("wkv7-serving-peers", "wkv7-serving --peers", 420, table=None, needs="fla"),
    ),
    peers={"fla": Peer("fla", FLA, "fla_serving", "no pool")},
    public=("serving.wkv7_serving", "serving.wkv7_verify", "serving.wkv7_commit"),
    checks=SERVING,
    calls="rwkv_lessons.wkv7.serving.calls:calls",
)
