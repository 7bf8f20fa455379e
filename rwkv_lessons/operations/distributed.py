"""One sequence on many GPUs: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.entries import Operation, own

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
    records=(replace(own("sequence-parallel", "sequence-parallel", table="two GPUs"), gpus=2),),
    public=("sequence_parallel",),
)
