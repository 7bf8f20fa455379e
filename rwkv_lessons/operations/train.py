"""A language model that learns: what is measured and recorded; see the package's docstring."""

from rwkv_lessons.operations.entries import Headline, Operation, RecordPlan, own

RESULTS = "methods, with results"
SHAPE = (8, 2048, 12, 1024)

TRAIN = Operation(
    "train",
    "time the steps in which a language model of RWKV-6 learns",
    "wkv6",
    shapes=(SHAPE,),
    quick=(2, 32, 2, 32),
    work=None,
    letters="B, T, layers, width",
    timed="A training step",
    command="train_model:command",
    dtypes=(),
    records=(
        own("train", "train", table=RESULTS),
        RecordPlan("train-peers", "train --methods 'wkv6,fla chunk'", 300, RESULTS, needs="fla"),
    ),
    headline=Headline(
        "RWKV-6 model, a training step", "train-peers", "wkv6", "fla chunk", "FLA, chunked", SHAPE
    ),
    verified_as={"wkv6": "wkv6"},
)
