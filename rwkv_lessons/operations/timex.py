"""time-x: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.checks import (
    ALL_DTYPES,
    ANYWHERE,
    Checks,
    Combinations,
)
from rwkv_lessons.operations.entries import (
    BOTH,
    NUMBA,
    TRITON,
    Headline,
    Ladder,
    Operation,
    Peer,
    RecordPlan,
    Rung,
)
from rwkv_lessons.operations.work import Work

TIME_X_RUNGS = (
    Rung("10 one thread an output", "10_time_x", "naive", NUMBA, "v0"),
    Rung("10 shared memory", "10_time_x", "shared", NUMBA, "v1"),
    Rung("10 four outputs", "10_time_x", "four", NUMBA, "v2", launch="launch_four"),
    Rung("10 batch groups", "10_time_x", "grouped", NUMBA, "v3", launch="launch_grouped"),
    Rung("10 balanced", "10_time_x", "balanced", NUMBA, launch="launch_balanced"),
    Rung(
        "10 Toeplitz products",
        "10_time_x",
        "toeplitz",
        TRITON,
        function="forward",
        tensor_cores=True,
    ),
)
TIME_X_BACKWARD_RUNGS = (
    Rung("11 one thread each", "11_time_x_gradients", "dw_naive", original="v0",
         function="one_thread", after=TIME_X_RUNGS[0]),
    Rung("11 shared memory", "11_time_x_gradients", "dw_shared", original="v1",
         function="from_shared", after=TIME_X_RUNGS[3]),
    Rung("11 balanced", "11_time_x_gradients", "dw_balanced", original="v3",
         function="balanced", after=TIME_X_RUNGS[4]),
)  # fmt: skip
CONV1D = Peer("torch", "torch", "timex_conv1d", "depthwise, T taps")
LENGTHS = " ".join(f"--shape 32,768,{2**n}" for n in range(7, 14))
OVER_LENGTHS = f"--peers {LENGTHS} --methods 'timex,toeplitz,cuda,fft,conv1d' --budget-ms 50"
# Sizes are B, C, T.
CHECKS = Checks(
    "timex",
    problem="tensors:Convolution",
    shapes={
        "short": (2, 3, 17),
        "odd": (5, 3, 333),  # several tiles of every kernel, none of them whole
        "aligned": (33, 4, 512),  # wider loads, and a group of batch rows more
    },
    options={"plain": {}, "eps": {"eps": 0.3}, "all": {"eps": 0.3, "w_dtype": "float32"}},
    rows=(
        Combinations(("fft",), ("float64",), ("short",), ("all",), ("",), ANYWHERE),
        Combinations(
            ("reference", "fft", "timex"), ALL_DTYPES, ("short",), ("plain", "all"), ("",), ANYWHERE
        ),
        Combinations(("cuda", "toeplitz"), ALL_DTYPES, ("odd",), ("plain", "eps", "all"), ("",)),
        Combinations(
            ("cuda", "toeplitz", "timex"), ALL_DTYPES, ("aligned",), ("plain", "all"), ("",)
        ),
        Combinations(("fft",), ALL_DTYPES, ("odd",), ("plain",), ("",), ANYWHERE),
    ),
    others=Combinations((), ALL_DTYPES, ("short",), ("plain", "all"), ("",)),
    repeatable=("cuda", "toeplitz"),
    few=("odd", "aligned"),
    numbers=lambda B, C, T: B * C * T,
)


def least_timex(B, C, T, itemsize):
    """The sum as defined.

    bytes: k read and o written, 2·B·C·T elements, and w, C·T.
    flops: token t adds t + 1 products, B·C·T·(T + 1) / 2 of 2 each.
    """
    return Work((2 * B + 1) * C * T * itemsize, B * C * T * (T + 1))


def least_timex_with_gradients(B, C, T, itemsize):
    """The backward pass reads k, do and w and writes dk and dw; both are sums as long as o's."""
    forward = least_timex(B, C, T, itemsize)
    return Work(forward.bytes + (3 * B + 2) * C * T * itemsize, 3 * forward.flops)


SHAPE = (32, 768, 768)

TIMEX = Operation(
    "timex",
    "time the methods of timex",
    "timex",
    shapes=(SHAPE,),
    quick=(2, 3, 40),
    work=least_timex,
    letters="B, C, T",
    inputs="rwkv_lessons.inputs:timex_inputs",
    like=1,
    reference="rwkv_lessons.timex:timex_fft",
    rung_arguments="rwkv_lessons.inputs:timex_rung_arguments",
    tensor_cores=("toeplitz", "timex"),
    ladders=(Ladder("timex", TIME_X_RUNGS, "toeplitz"),),
    records=(
        RecordPlan("timex-peers", "timex --peers", 120),
        RecordPlan("timex-lengths", f"timex {OVER_LENGTHS}", 120, "milliseconds by shape"),
    ),
    peers={"conv1d": CONV1D},
    headline=Headline(
        "time-x forward, float32", "timex-peers", "timex", "conv1d", "torch", SHAPE, "float32"
    ),
    public=("timex", "__getattr__"),
    checks=CHECKS,
    calls="rwkv_lessons.timex.calls:calls",
)

TIMEX_BACKWARD = replace(
    TIMEX,
    name="timex-backward",
    says="time both passes of timex",
    timed=BOTH,
    work=least_timex_with_gradients,
    ladders=(Ladder("timex-backward", TIME_X_BACKWARD_RUNGS, "toeplitz"),),
    records=(
        RecordPlan("timex-backward-peers", "timex-backward --peers --budget-ms 100", 120),
        RecordPlan(
            "timex-backward-lengths",
            f"timex-backward {OVER_LENGTHS}",
            180,
            "milliseconds by shape",
        ),
    ),
    peers={"conv1d": replace(CONV1D, adapter="timex_conv1d_gradients")},
    headline=None,
)
