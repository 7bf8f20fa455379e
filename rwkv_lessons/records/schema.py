"""What is written down about a measurement, and where. Lessons read it: no heavy imports."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from rwkv_lessons.records.fingerprint import fingerprint, fingerprints_of_kernels

RECORDS = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Provenance:
    """Where, when and how. Versions are None where a package is not part of the measurement."""

    gpu: str
    driver: str
    cuda: str
    date: str
    commit: str
    command: str
    timing: str
    python: str | None = None
    torch: str | None = None
    triton: str | None = None
    numba: str | None = None
    numba_cuda: str | None = None
    ptxas: str | None = None  # of this library's Triton kernels
    triton_ptxas: str | None = None  # of the lessons' and of other packages'
    nvjitlink: str | None = None  # of numba's kernels

    def __str__(self):
        versions = [f"{name.replace('_', '-')} {version}" for name, version in self.versions()]
        parts = [self.gpu, f"driver {self.driver} (CUDA {self.cuda})", *versions, self.date]
        return ", ".join(parts) + f", commit {self.commit}; {self.timing}; {self.command}"

    def versions(self):
        names = ("python", "torch", "triton", "numba", "numba_cuda")
        names += ("ptxas", "triton_ptxas", "nvjitlink")
        return [(name, getattr(self, name)) for name in names if getattr(self, name)]


@dataclass(frozen=True)
class Measurement:
    """One method at one shape. What was not measured is None, and is left out of the file."""

    method: str
    shape: tuple[int, ...]
    dtype: str
    n: int | None = None  # how many times it was timed
    median_ms: float | None = None  # device time
    p20_ms: float | None = None
    p80_ms: float | None = None
    host_ms: float | None = None  # wall clock of one eager call, until the device has finished
    gb_per_s: float | None = None  # fewest bytes / device time
    tflop_per_s: float | None = None  # flops of the definition / device time
    roofline_share: float | None = None  # floor / device time
    error: float | None = None  # ‖o − ref‖ / ‖ref‖, ref in float64
    extra_bytes: int | None = None  # at the peak, beyond inputs and outputs
    block: int | None = None  # threads per block
    registers: int | None = None  # per thread
    local_bytes: int | None = None  # per thread
    shared_bytes: int | None = None  # per block
    counters: dict[str, int] | None = None  # of the hardware, by bench/counters.py
    note: str | None = None
    problem: str | None = None  # why it was not timed
    sources: tuple[str, ...] = ()  # the code: "file.py::name", or "file.py" for all of it
    sha256: str | None = None  # of that code, see fingerprint.py
    kernels: tuple[str, ...] = ()  # fingerprints of the kernels that it may launch

    @property
    def outcome(self):
        """Its time, of the device if that was measured, or why it has none."""
        ms = self.host_ms if self.median_ms is None else self.median_ms
        return self.problem or f"{ms:.3f} ms"

    @property
    def stale(self):
        """True if a kernel behind this row is no longer what was measured; others may be new."""
        try:
            kernels = {*self.kernels}
            return bool(kernels) and not kernels.issubset(fingerprints_of_kernels(*self.sources))
        except (OSError, ValueError):  # the file or the function has gone
            return True

    @property
    def host_changed(self):
        """True if the kernels are those that were measured, and the code around them is not.

        Of a method without kernels, which calls torch, all code is of this kind.
        """
        if not self.sources or self.stale:  # without sources: not ours
            return False
        try:
            return fingerprint(*self.sources) != self.sha256
        except (OSError, ValueError):
            return True


def code(*sources):
    """The fields of a `Measurement` that say which code it is of."""
    return {
        "sources": sources,
        "sha256": fingerprint(*sources),
        "kernels": fingerprints_of_kernels(*sources),
    }


@dataclass(frozen=True)
class Record:
    """The result of one command."""

    name: str
    provenance: Provenance
    rows: tuple[Measurement, ...] = ()
    ceilings: dict[str, float] = field(default_factory=dict)  # name → number per second, or ns

    def row(self, method, shape=None, dtype=None):
        """The one row of `method`, at a shape (B, T, H, N) and a dtype where there are several.

        Raises:
            LookupError: no row matches, or more than one.
        """
        matching = [
            row
            for row in self.rows
            if row.method == method
            and (shape is None or row.shape == tuple(shape))
            and (dtype is None or row.dtype == dtype)
        ]
        if len(matching) != 1:
            criteria = ", ".join(str(x) for x in (method, shape, dtype) if x is not None)
            rows = "; ".join(f"{row.method} {row.shape} {row.dtype}" for row in self.rows)
            raise LookupError(f"{len(matching)} rows of {self.name} for {criteria}; it has {rows}")
        return matching[0]

    def milliseconds(self, method, shape=None, dtype=None):
        """Median device time of that row; None if it was not timed."""
        return self.row(method, shape, dtype).median_ms


def slug(gpu):
    """ "NVIDIA H200" → "nvidia-h200"."""
    return "-".join(gpu.lower().split())


def need_records():
    """Raises a ValueError where the library is without records, as a wheel has it."""
    if not RECORDS.exists():
        raise ValueError("only the library is installed here; the records are in the repository")


def path(name, gpu, folder=None):
    """The file of record `name` of a GPU ("NVIDIA H200" or "nvidia-h200")."""
    return (folder or RECORDS) / slug(gpu) / f"{name}.json"


def save(record, folder=None):
    """Writes `record`, instead of an earlier one of that name and GPU; returns the path."""
    file = path(record.name, record.provenance.gpu, folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    ceilings = {key: float(f"{value:.5g}") for key, value in record.ceilings.items()}
    head = {"name": record.name, "provenance": _filled(record.provenance)} | ceilings
    by_key = {_key(row.kernels): " ".join(row.kernels) for row in record.rows if row.kernels}
    head |= {"kernels": by_key} if by_key else {}
    lines = json.dumps(head, indent=2, ensure_ascii=False, allow_nan=False)
    rows = ",\n".join(
        "    " + json.dumps(_written(row), ensure_ascii=False, allow_nan=False)
        for row in record.rows
    )
    if rows:  # one row, one line: a diff shows which one moved
        lines = lines.removesuffix("\n}") + f',\n  "rows": [\n{rows}\n  ]\n}}'
    file.write_text(lines + "\n", encoding="utf-8")
    return file


def save_with(record, key, items, folder=None):
    """As `save`, and `items` under a key, each as JSON in a line; returns the path."""
    file = save(record, folder)
    text = file.read_text(encoding="utf-8").removesuffix("\n}\n")
    lines = ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in items)
    file.write_text(f'{text},\n  "{key}": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    return file


def load_with(name, key, gpu, folder=None):
    """(provenance, the items under a key) of a record; LookupError if there is none."""
    file = path(name, gpu, folder)
    if not file.exists():
        raise LookupError(f"no record {name!r} of an {gpu} yet")
    data = json.loads(file.read_text(encoding="utf-8"))
    return Provenance(**data["provenance"]), data[key]


def load(file):
    """The record in `file`."""
    data = json.loads(Path(file).read_text(encoding="utf-8"))
    kernels = {key: text.split() for key, text in data.pop("kernels", {}).items()}
    rows = tuple(_row(row, kernels) for row in data.pop("rows", ()))
    return Record(data.pop("name"), Provenance(**data.pop("provenance")), rows, data)


def _filled(x):
    """The fields that hold something, numbers with five digits: more would be noise."""
    filled = {key: value for key, value in asdict(x).items() if value not in (None, ())}
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in filled.items()}


def _key(kernels):
    """By which rows name these kernels: many have the same."""
    return hashlib.sha256(" ".join(kernels).encode()).hexdigest()[:8]


def _written(row):
    return _filled(row) | ({"kernels": _key(row.kernels)} if row.kernels else {})


def _row(data, kernels):
    data |= {"kernels": kernels[data["kernels"]]} if "kernels" in data else {}
    tuples = {f.name for f in fields(Measurement) if str(f.type).startswith("tuple")}
    return Measurement(**{key: tuple(v) if key in tuples else v for key, v in data.items()})
