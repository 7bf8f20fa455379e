"""The one table of operations: what is computed, how it is measured, and what is recorded of it.

Adding an operation
    1. rwkv_lessons/<name>/, its package: `METHODS` maps a name to a function of the inputs that
       returns o, or a tuple that starts with o; <name>, its own function, picks one of them.
    2. A function, there or in inputs.py: (*shape, dtype=, device=) → the inputs, that of `like` of
       the shape that `letters` names, all with gradients if both passes are timed; with lessons,
       what their rungs take.
    3. <name>.py beside this: an `Operation`, and with `replace` one that times both passes. They
       are found there. Of them are made: `python -m rwkv_lessons.bench <name>`, `ladder`,
       `profile`, `record-all`, each record's table and figure, its line in the README's first
       table, the kernels' fingerprint; with `checks`, what verify looks at; with `calls`, a
       function of the package, what `matrix` compiles for every architecture.
       tests/operations/test_operations.py says what an entry lacks.
    4. docs/results/: `<!-- BEGIN <record> -->` and `<!-- END <record> -->` for each table.
    An adapter is a file of interop/; a package to compare with, a function of bench/peers.py.
    Adding a method: its file, and a key of `METHODS`. It is timed beside the others, and looked at
    as `others` of the checks says, until it has rows of its own there.

What an entry is made of stands in entries.py. Functions are named "module:function" and imported
when they are called: this module needs neither torch nor Triton nor numba.
"""

from importlib import import_module
from pkgutil import iter_modules

from rwkv_lessons.operations.entries import Operation

FIRST = "wkv5", "wkv6", "timex", "wkv7", "kda", "mla", "distributed", "train"  # in tables, too


def _entries():
    """Every `Operation` of the files beside this, those of FIRST before the others."""
    for name in dict.fromkeys([*FIRST, *(file.name for file in iter_modules(__path__))]):
        module = import_module(f"{__name__}.{name}")
        yield from (x for x in vars(module).values() if isinstance(x, Operation))


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


TABLE = tuple(_entries())
OPERATIONS = {operation.name: operation for operation in TABLE}
LADDERS = {ladder.name: ladder for operation in TABLE for ladder in operation.ladders}
OF_LADDER = {ladder.name: operation for operation in TABLE for ladder in operation.ladders}
