"""What was measured, and where and when: `record("wkv5-ladder").milliseconds("05_float4")`.

Records are written by `python -m rwkv_lessons.bench … --record` and read here, by lessons, pictures
and the README. Nobody types a measured number.
"""

from rwkv_lessons.operations import operation_of
from rwkv_lessons.records.schema import RECORDS, load, path

GPU = "NVIDIA H200"  # where this project records


def record(name, gpu=GPU, folder=None):
    """The record `name` of a GPU.

    Args:
        name: of a file in records/data/<gpu>/, without ".json".
        gpu: the GPU's name, as the driver has it.
        folder: where records are, if not in records/data.

    Raises:
        LookupError: nobody recorded it yet; names those that are there.
    """
    measured = recorded(name, gpu, folder)
    if measured is None:
        files = path(name, gpu, folder).parent.glob("*.json")
        names = ", ".join(sorted(file.stem for file in files)) or "none"
        raise LookupError(f"no record {name!r} of an {gpu} yet; there are: {names}")
    return measured


def recorded(name, gpu=GPU, folder=None):
    """As `record`; None where nobody recorded it yet."""
    file = path(name, gpu, folder)
    return load(file) if file.exists() else None


def times(name, gpu=GPU, folder=None):
    """A line per method of a record with its median time; or that nobody recorded it yet."""
    measured = recorded(name, gpu, folder)
    if not measured:
        return f"{name}: not recorded on an {gpu} yet"
    sizes = operation_of(name).sizes(measured.rows[0].shape)
    lines = [f"{sizes}, {measured.rows[0].dtype}: {gpu}, {measured.provenance.date}"]
    return "\n".join(lines + [f"  {row.method}: {row.outcome}" for row in measured.rows])


def every_record(folder=None):
    """All records of all GPUs, by path."""
    return {file: load(file) for file in sorted((folder or RECORDS).glob("*/*.json"))}


def stale_rows(folder=None):
    """A line for each row that has to be measured again, with the command that did it last.

    One GPU is enough: a row is left out if another GPU's record of that name has it with today's
    kernels. The tables show both.
    """
    records = every_record(folder)
    lines = [(file, measured, row) for file, measured in records.items() for row in measured.rows]
    fresh = {_line(file, row) for file, _, row in lines if not row.stale}
    return [
        f"{file.parent.name}/{file.stem}: {row.method} {row.dtype} ← {measured.provenance.command}"
        for file, measured, row in lines
        if row.stale and _line(file, row) not in fresh
    ]


def _line(file, row):
    return file.stem, row.method, row.shape, row.dtype


def newest(name, gpu=GPU, folder=None):
    """The record of `gpu`, or another GPU's if only that has today's kernels; None without any."""
    return renewed(name, gpu, folder) or recorded(name, gpu, folder)


def renewed(name, gpu=GPU, folder=None):
    """Where `gpu` has no record, or one with older kernels: another GPU's with today's, or None."""
    other = beside(name, gpu, folder)
    return None if other is None or is_stale(other) else other


def beside(name, gpu=GPU, folder=None):
    """Where `gpu` has no record, or one with older kernels: another GPU's, or None.

    One with today's kernels if there is one, otherwise the newest that is no older than `gpu`'s.
    """
    measured = recorded(name, gpu, folder)
    if measured and not is_stale(measured):
        return None
    others = [load(file) for file in sorted((folder or RECORDS).glob(f"*/{name}.json"))]
    others = [x for x in others if x.provenance.gpu != gpu and x.rows]
    if measured:
        dated = measured.provenance.date
        others = [x for x in others if not is_stale(x) or x.provenance.date >= dated]
    return max(others, key=lambda x: (not is_stale(x), x.provenance.date), default=None)


def is_stale(measured):
    """Whether any of its rows was measured with older kernels."""
    return any(row.stale for row in measured.rows)
