"""No time is recorded of a method that is wrong with some of its options: see verify/gate.py."""

from dataclasses import fields

from rwkv_lessons.operations import BACKWARD, operation_of, untooled
from rwkv_lessons.records.schema import Row
from rwkv_lessons.verify import gate

KEPT = ("method", "shape", "dtype", "error", "note", "sources", "sha256")
MLA = {"kernel": "prefill", "prefill absorbed": "prefill", "latent": "mla", "latent graph": "mla"}


def refused(name, row):
    """`row` of record `name`, or the reason instead of its time where verify has it wrong."""
    if row.problem:
        return row
    operation, method = _verified_as(name, row.method)
    problem = gate.problem(operation, method, row.dtype, BACKWARD in name + row.method)
    if problem is None:
        return row
    kept = {field.name: getattr(row, field.name) for field in fields(Row) if field.name in KEPT}
    return Row(**kept, problem=problem)


def _verified_as(name, method):
    """Operation and method as verify's table calls them."""
    method = method.split(",")[0].removesuffix(BACKWARD)  # "…, graph" launches the same kernels
    if name.startswith("mla"):
        return "mla", MLA.get(method, method)
    if method == "wkv6_step":
        return method, method
    return untooled(operation_of(name)).split("-")[0], method
