"""The one table of operations: what is computed, how it is measured, and what is recorded of it.

Adding an operation
    1. rwkv_lessons/<name>/, its package: `METHODS` maps a name to a function of the inputs that
       returns o, or a tuple that starts with o; <name>, its own function, picks one of them.
    2. inputs.py: (*shape, dtype=, device=) → the inputs, that of `like` of the shape that `letters`
       names, all with gradients if both passes are timed; with lessons, what their rungs take.
    3. work.py: the fewest bytes and the flops of its definition.
    4. Below: an `Operation` in `TABLE`, and with `replace` one that times both passes. Of it are
       made: `python -m rwkv_lessons.bench <name>`, `ladder`, `profile`, `record-all`, each
       record's table and figure, its line in the README's first table, the kernels' fingerprint.
       tests/operations/test_operations.py says what an entry lacks.
    5. docs/results.md: `<!-- BEGIN <record> -->` and `<!-- END <record> -->` for each table.
    6. verify/cases.py: its methods with their options; until then its times are recorded unasked.
    7. bench/launches.py: its calls, so that `matrix` compiles its kernels for every architecture.
    An adapter is a file of interop/; a package to compare with, a function of bench/peers.py.
    Adding a method: a key of `METHODS`, its tool in `methods` below, its name in verify's rows.

What an entry is made of stands in entries.py. Functions are named "module:function" and imported
when they are called: this module needs neither torch nor Triton nor numba.
"""

from dataclasses import replace

from rwkv_lessons.operations import work as least
from rwkv_lessons.operations.entries import (
    BOTH,
    NUMBA,
    TORCH,
    TRITON,
    Headline,
    Ladder,
    Operation,
    Peer,
    Plan,
    Rung,
    own,
)  # fmt: skip


def operation_of(record):
    """The `Operation` that a record's or a ladder's name starts with.

    WKV-6's of "wkv6", "wkv6-small" and "wkv6-triton-ladder"; the one that times both passes of
    "wkv6-backward-peers".

    Raises:
        ValueError: no operation and no ladder is called so.
    """
    names = [name for name in {*OPERATIONS, *OF_LADDER} if f"{record}-".startswith(f"{name}-")]
    if not names:
        raise ValueError(f"operation is {record!r}, needs one of {', '.join(OPERATIONS)}")
    name = max(names, key=len)
    return OPERATIONS.get(name) or OF_LADDER[name]


def work(operation, shape, dtype):
    """The fewest bytes and the flops of an operation.

    Args:
        operation: its name, or that of one of its ladders or records.
        shape: as many numbers of at least 1 as the operation has letters, (B, T, H, N) for most.
        dtype: a key of `DTYPES`: the type of r, k, v, o and, in WKV-6, w. Parameters and states
            are float32.

    Raises:
        ValueError: the operation, the shape or the dtype is not known here.
    """
    return operation_of(operation).least(shape, dtype)


FLA = "flash-linear-attention"
SAME_DECAY = "w expanded to [B, T, H, N]"
WKV6_MODULE = "rwkv_lessons.wkv6"
SMALLER = (
    "--shape 1,4096,64,64 --shape 1,32768,64,64 --shape 1,54,32,64 --methods wkv6,cuda,chunked"
)
BESIDE_PEERS = "--peers --dtype bfloat16 --methods 'wkv6,chunked,cuda,fla chunk,fla recurrent'"
TABLE_SHAPE = (8, 4096, 64, 64)
DEEPSEEK_SHAPE = (64, 4096, 128, 512, 64, 128)
# (H, R, P, V): heads, rank, sizes of rope and value.
MINICPM3, DEEPSEEK_V3, ITS_8TH_PART = (40, 256, 32, 64), (128, 512, 64, 128), (16, 512, 64, 128)

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

# Chunks are made for 16 bits: a ladder that leads to them shows these first.
BOTH_DTYPES = ("bfloat16", "float32")
WALK = ("the walk, finished in CUDA", "cuda")  # token by token: what chunks have to beat
DECAY_FROM_DATA = Rung("08 decay from data", "08_decay_from_data", "kernel")
FUSED_RECURRENT = Rung(
    "13 fused recurrent", "13_fused_recurrent", "kernel", TRITON, dtypes=BOTH_DTYPES
)
CHUNKED_KERNEL = Rung(
    "16 the chunked kernel", "16_the_chunked_kernel", "kernel", TRITON,
    dtypes=BOTH_DTYPES, tensor_cores=True,
)  # fmt: skip
BACKWARD_PASS = Rung(
    "09 the backward pass", "09_the_backward_pass", "gradients", after=DECAY_FROM_DATA
)
# Each ladder in Triton starts from the last rung in CUDA.
TRITON_RUNGS = (DECAY_FROM_DATA, FUSED_RECURRENT, CHUNKED_KERNEL)
TRITON_BACKWARD_RUNGS = (
    BACKWARD_PASS,
    Rung("14 recurrent gradients", "14_recurrent_gradients", "gradients", TRITON,
         dtypes=BOTH_DTYPES, after=FUSED_RECURRENT),
    Rung("17 chunked gradients", "17_chunked_gradients", "gradients", TRITON,
         dtypes=BOTH_DTYPES, after=CHUNKED_KERNEL, tensor_cores=True),
)  # fmt: skip

WKV6 = Operation(
    "wkv6",
    "time the methods of wkv6",
    "wkv6",
    shapes=(TABLE_SHAPE,),
    quick=(2, 16, 2, 64),
    work=least.wkv6,
    inputs="rwkv_lessons.inputs:rwkv6_inputs",
    reference=f"{WKV6_MODULE}:wkv6_reference",
    rung_arguments="rwkv_lessons.inputs:wkv6_rung_arguments",
    methods={
        "reference": TORCH,
        "doubling": TORCH,
        "cuda": NUMBA,
        "recurrent": TRITON,
        "chunked": TRITON,
        "wkv6": TRITON,  # or any of them: of another, no resources are read
    },
    tensor_cores=("chunked", "wkv6", "fla chunk"),  # wkv6 may choose: the lower roof is its own
    ladders=(
        Ladder("wkv6", (DECAY_FROM_DATA,), "cuda"),
        Ladder("wkv6-triton", TRITON_RUNGS, "chunked", dtypes=BOTH_DTYPES, beside=WALK),
    ),
    records=(
        # Without the reference: half a second a call.
        Plan("wkv6", "wkv6 --methods wkv6,chunked,recurrent,cuda,doubling", 90),
        Plan("wkv6-small", f"wkv6 {SMALLER} --dtype float32,bfloat16", 90),
        Plan(
            "wkv6-short",
            "wkv6 --dtype float16 --shape 1,54,32,64 --methods wkv6,recurrent,chunked,cuda",
        ),
        Plan(
            "wkv6-triton-few",
            "ladder wkv6-triton --shape 4,1024,4,64"
            " --methods 08_decay_from_data,13_fused_recurrent",
            table=None,
        ),
        own("wkv6-first", "first", 150),
        own("wkv6-race", "race", 120, "race"),
        Plan("wkv6-peers", f"wkv6 {BESIDE_PEERS}", 240, needs="fla"),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_chunk"),
        "fla recurrent": Peer("fla", FLA, "fla_recurrent"),
    },
    headline=Headline(
        "RWKV-6 forward", "wkv6-peers", "wkv6", "fla chunk", "FLA, chunks", TABLE_SHAPE
    ),
    public=("wkv6", "__getattr__"),
)

WKV6_BACKWARD = replace(
    WKV6,
    name="wkv6-backward",
    says="time both passes of wkv6",
    timed=BOTH,
    work=least.wkv6_with_gradients,
    reference=f"{WKV6_MODULE}:wkv6_doubling",  # wkv6_reference would keep every state
    methods={name: tool for name, tool in WKV6.methods.items() if name != "reference"},
    ladders=(
        Ladder("wkv6-backward", (BACKWARD_PASS,), "cuda"),
        Ladder(
            "wkv6-triton-backward",
            TRITON_BACKWARD_RUNGS,
            "chunked",
            dtypes=BOTH_DTYPES,
            beside=WALK,
        ),
    ),
    records=(
        # Without recurrent: its reverse sweep is for few tokens.
        Plan("wkv6-backward", "wkv6-backward --methods wkv6,chunked,cuda", 90),
        Plan("wkv6-backward-small", f"wkv6-backward {SMALLER} --dtype bfloat16", 90),
        Plan("wkv6-backward-peers", f"wkv6-backward {BESIDE_PEERS}", 360, needs="fla"),
    ),
    peers={
        "fla chunk": Peer("fla", FLA, "fla_chunk_gradients"),
        "fla recurrent": Peer("fla", FLA, "fla_recurrent_gradients"),
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
    work=least.wkv6_decode,
    inputs="rwkv_lessons.inputs:wkv6_decode_inputs",
    reference=f"{WKV6_MODULE}:wkv6_reference",
    compared=2,  # the state as well
    tensor_cores=(),
    prepared="rwkv_lessons.bench.commands.wkv6_decode:library",
    records=(
        Plan(
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
)

TIME_X_RUNGS = (
    Rung("10 one thread an output", "10_time_x", "naive", NUMBA, "v0"),
    Rung("10 shared memory", "10_time_x", "shared", NUMBA, "v1"),
    Rung("10 four outputs", "10_time_x", "four", NUMBA, "v2", launch="launch_four"),
    Rung("10 batch groups", "10_time_x", "grouped", NUMBA, "v3", launch="launch_grouped"),
    Rung("10 balanced", "10_time_x", "balanced", NUMBA, launch="launch_balanced"),
)
TIME_X_BACKWARD_RUNGS = (
    Rung("11 one thread each", "11_time_x_gradients", "one_thread", original="v0",
         after=TIME_X_RUNGS[0], sweep="dw_naive"),
    Rung("11 shared memory", "11_time_x_gradients", "from_shared",
         after=TIME_X_RUNGS[3], sweep="dw_shared"),
    Rung("11 balanced", "11_time_x_gradients", "balanced",
         after=TIME_X_RUNGS[4], sweep="dw_balanced"),
)  # fmt: skip
OF_LENGTHS = "timex,toeplitz,cuda,fft,conv1d"
CONV1D = Peer("torch", "torch", "timex_conv1d", "depthwise, T taps")
LENGTHS = " ".join(f"--shape 32,768,{2**n}" for n in range(7, 14))
TIMEX = Operation(
    "timex",
    "time the methods of timex",
    "timex",
    shapes=((32, 768, 768),),
    quick=(2, 3, 40),
    work=least.timex,
    letters="B, C, T",
    inputs="rwkv_lessons.inputs:timex_inputs",
    like=1,
    reference="rwkv_lessons.timex:timex_fft",
    rung_arguments="rwkv_lessons.inputs:timex_rung_arguments",
    methods={
        "reference": TORCH,
        "fft": TORCH,
        "cuda": NUMBA,
        "toeplitz": TRITON,
        "timex": TRITON,
    },
    ladders=(Ladder("timex", TIME_X_RUNGS, "toeplitz"),),
    records=(
        Plan("timex-peers", "timex --peers", 120),
        Plan("timex-lengths", f"timex --peers {LENGTHS} --methods '{OF_LENGTHS}'", 300),
    ),
    peers={"conv1d": CONV1D},
    public=("timex", "__getattr__"),
)

TIMEX_BACKWARD = replace(
    TIMEX,
    name="timex-backward",
    says="time both passes of timex",
    timed=BOTH,
    work=least.timex_with_gradients,
    ladders=(Ladder("timex-backward", TIME_X_BACKWARD_RUNGS, "toeplitz"),),
    records=(
        Plan("timex-backward-peers", "timex-backward --peers", 180),
        Plan(
            "timex-backward-lengths",
            f"timex-backward --peers {LENGTHS} --methods '{OF_LENGTHS}'",
            400,
        ),
    ),
    peers={"conv1d": replace(CONV1D, adapter="timex_conv1d_gradients")},
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
    ladders=(
        Ladder(
            "wkv7",
            (DELTA_RULE, CHUNKED_WKV7),
            "chunked",
            60,
            dtypes=BOTH_DTYPES,
            shape=TABLE_SHAPE,
        ),
    ),
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
    ladders=(
        Ladder(
            "wkv7-backward",
            (STEPPING_BACK,),
            "chunked",
            60,
            dtypes=BOTH_DTYPES,
            shape=TABLE_SHAPE,
        ),
    ),
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
    prepared="rwkv_lessons.bench.commands.wkv7_decode:library",
    records=(own("wkv7-decode", "wkv7-decode"),),
    public=("wkv7_step",),
)

MLA_DECODE = Operation(
    "mla-decode",
    "time a query token against a latent cache",
    "mla",
    shapes=(
        *((*x, *MINICPM3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 1024))),
        (64, 16384, *MINICPM3),
        *((*x, *DEEPSEEK_V3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 4096))),
        (64, 4096, *ITS_8TH_PART),
    ),
    quick=(2, 70, 3, 32, 16, 16),
    work=least.mla_decode,
    letters="B, N, H, R, P, V",
    command="mla_decode:command",
    dtypes=("bfloat16",),
    records=(own("mla-decode", "mla-decode", 90, "beside torch"),),
    headline=Headline(
        "MLA decode, DeepSeek-V3", "mla-decode", "decode", "torch absorbed", "torch", DEEPSEEK_SHAPE
    ),
    public=("mla", "__getattr__"),
)

MLA_LADDER = Operation(
    "mla-ladder",
    "time a step of latent attention, rung by rung",
    "mla",
    shapes=((64, 4096, 40, 64, 256, 32, 64), (1, 16384, 40, 64, 256, 32, 64)),
    quick=(2, 20, 3, 16, 32, 16, 16),
    work=least.mla_ladder,
    letters="B, N, H, K, R, P, V",
    command="mla_ladder:command",
    dtypes=("bfloat16",),
    records=(
        replace(own("mla-ladder", "mla-ladder"), holds=(("27_split_decode.combine", "bfloat16"),)),
    ),
)

MLA_PREFILL = Operation(
    "mla-prefill",
    "time latent attention of a whole prompt",
    "mla",
    shapes=(  # MiniCPM3, the first with the seed's 32 heads, and DeepSeek-V3
        (1, 2048, 32, 64, 256, 32, 64),
        (1, 4096, 40, 64, 256, 32, 64),
        (16, 1024, 40, 64, 256, 32, 64),
        (1, 2048, 128, 128, 512, 64, 128),
    ),
    quick=(1, 20, 2, 16, 32, 16, 16),
    work=least.mla_prefill,
    letters="B, T, H, K, R, P, V",
    command="mla_prefill:command",
    dtypes=("bfloat16",),
    records=(own("mla-prefill", "mla-prefill", 90, "milliseconds by shape"),),
    public=("mla_prefill",),
    verified_as={"kernel": "prefill", "prefill absorbed": "prefill"},
)

MLA_GENERATE = Operation(
    "mla-generate",
    "time a whole MiniCPM3-4B that writes text",
    "mla",
    shapes=((1, 512, 128), (8, 512, 128), (16, 512, 128), (1, 4096, 128), (16, 4096, 128)),
    quick=(2, 6, 5),
    work=None,
    letters="sequences, tokens in, tokens out",
    command="mla_generate:command",
    dtypes=(),  # none to choose: the model's own
    records=(
        own("mla-generate", "mla-generate", 400, "tokens per second by shape", "transformers"),
    ),
    verified_as={"latent": "mla", "latent graph": "mla"},
)

# Its own rows: a call and its steps, not a method.
SEQUENCE_PARALLEL = Operation(
    "sequence-parallel",
    "time one sequence on two GPUs",
    "distributed",
    shapes=((2, 1, 32768, 64, 64), (2, 1, 131072, 64, 64), (2, 1, 1048576, 64, 64)),
    quick=(2, 1, 64, 2, 16),
    work=None,
    letters="GPUs, B, T, H, N",
    command="sequence_parallel:command",
    dtypes=(),
    records=(replace(own("sequence-parallel", "sequence-parallel", 150), gpus=2),),
    public=("sequence_parallel",),
)

TRAIN = Operation(
    "train",
    "time the steps in which a language model of RWKV-6 learns",
    "wkv6",
    shapes=((8, 2048, 12, 1024),),
    quick=(2, 32, 2, 32),
    work=None,
    letters="B, T, layers, width",
    command="train_model:command",
    dtypes=(),
    records=(own("train", "train", 120),),
    verified_as={"wkv6": "wkv6"},
)

TABLE = (WKV5, WKV5_BACKWARD, WKV6, WKV6_BACKWARD, WKV6_DECODE)
TABLE += (TIMEX, TIMEX_BACKWARD)
TABLE += (WKV7, WKV7_BACKWARD, WKV7_DECODE)
TABLE += (MLA_DECODE, MLA_LADDER, MLA_PREFILL, MLA_GENERATE)
TABLE += (SEQUENCE_PARALLEL, TRAIN)
OPERATIONS = {operation.name: operation for operation in TABLE}
LADDERS = {ladder.name: ladder for operation in TABLE for ladder in operation.ladders}
OF_LADDER = {ladder.name: operation for operation in TABLE for ladder in operation.ladders}
