"""No time is recorded of a method that is wrong with some of its options: see verify/gate.py."""

from rwkv_lessons.operations import OPERATIONS, operation_of
from rwkv_lessons.operations.entries import BOTH
from rwkv_lessons.records.schema import Measurement
from rwkv_lessons.verify import cases, gate

UNTIMED = ("method", "shape", "dtype", "error", "note", "sources", "sha256", "kernels")


def refused(name, row):
    """`row` of record `name`, or the reason instead of its time where verify has it wrong."""
    if row.problem:
        return row
    problem = gate.problem(*_verified_as(name, row.method), row.dtype, _gradients(name, row.method))
    if problem is None:
        return row
    return Measurement(**{name: getattr(row, name) for name in UNTIMED}, problem=problem)


def _verified_as(name, method):
    """Operation and method as verify's table calls them."""
    operation, method = operation_of(name), method.split(",")[0]  # "…, graph": the same kernels
    if method in OPERATIONS:  # first calls: the package's own function, with gradients or without
        operation = OPERATIONS[method]
        method = operation.package
    if method in cases.CHECKED:  # a function of its own, as wkv6_step
        return method, method
    return operation.package, operation.verified_as.get(method, method)


def _gradients(name, method):
    """Whether the backward pass was timed as well."""
    entries = (operation_of(name), OPERATIONS.get(method))
    return any(entry and entry.timed == BOTH for entry in entries)
