"""What an entry of the table of operations is made of. Imports nothing but the standard library."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from rwkv_lessons.operations.checks import Checks
from rwkv_lessons.operations.work import MULTIPLY_ADDS, TENSOR_CORES, Work

ROOT = Path(__file__).resolve().parents[2]
BENCH = "python -m rwkv_lessons.bench"
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of an element
FORWARD, BOTH = "Forward", "Forward and backward"  # what one timed run is
# What makes the kernels of a rung, and so what tells which resources they take.
NUMBA, TRITON, GLUON = "numba", "Triton", "Gluon"
BLOCKS = (32, 64, 128, 256, 512)  # threads per block of a sweep

# What several operations share.
FLA = "flash-linear-attention"
TABLE_SHAPE = (8, 4096, 64, 64)

# Chunks are made for 16 bits: a ladder that leads to them shows these first.
BOTH_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True)
class Rung:
    """A step of a ladder: one kernel of a lesson, in solutions/."""

    label: str
    stem: str  # of the lesson and of the file in solutions/
    kernel: str | None = None  # its name in that file; of gradients, that whose registers are told
    tool: str = NUMBA
    original: str | None = None  # the CUDA C kernel of RWKV-CUDA that takes the same step
    zeroed: bool = False  # adds to its output, which has to be zero before every launch
    swept: bool = False  # launch(*shape, block) takes a size: measured with several
    launch: str = "launch"  # the function of that file that says how many blocks and threads
    # Or the one that launches all of it, of what a rung reads, and of gradients do and those of the
    # states: of that file, or made by its `rungs()`.
    function: str | None = None
    made_of: tuple[str, ...] = ()  # other code that it runs, as `fingerprint` asks
    dtypes: tuple[str, ...] = ("float32",)  # that its kernel takes
    tensor_cores: bool = False  # its arithmetic is matrix products
    after: "Rung | None" = None  # of gradients: the rung whose forward pass is timed with them
    both_passes: bool = False  # of gradients: runs the forward pass itself, and returns o first

    @property
    def method(self):
        """Its name in a record."""
        name = self.kernel if self.function in (None, "forward") else self.function
        return self.stem if name == "kernel" else f"{self.stem}.{name}"

    @property
    def file(self):
        return f"solutions/{self.stem}.py"

    @property
    def source(self):
        """The function that launches it, as `fingerprint` asks."""
        in_file = self.tool != GLUON  # else `rungs` makes it
        return f"{self.file}::{self.function if in_file else 'rungs'}"

    def load(self):
        """The module, executed anew."""
        return lesson(self.stem)

    def load_function(self):
        """What `function` names."""
        module = self.load()
        rungs = getattr(module, "rungs", dict)()  # before what the module only imports
        return rungs.get(self.function) or getattr(module, self.function)


@dataclass(frozen=True)
class Ladder:
    """The rungs of an operation from the bottom up, and the library's method at their end."""

    name: str  # `ladder <name>` measures it
    rungs: tuple[Rung, ...]
    finished: str  # a key of the package's METHODS
    limit_s: int = 240
    dtypes: tuple[str, ...] = ("float32",)  # what it is shown in first comes first
    beside: tuple[str, str] | None = None  # (label, key of METHODS), shown after the first rung
    shape: tuple[int, ...] = ()  # that it is measured at; those of the operation if empty

    @property
    def plan(self):
        at = f" --shape {','.join(map(str, self.shape))}" if self.shape else ""
        own_plan = own(f"{self.name}-ladder", f"ladder {self.name}{at}", self.limit_s, "ladder")
        return replace(own_plan, holds=self.rows, named=bool(at))

    @property
    def rows(self):
        """(method, dtype) of what its record has at least."""
        rungs = [(r.method, x) for r in self.rungs for x in r.dtypes if x in self.dtypes]
        library = [self.finished, *([self.beside[1]] if self.beside else [])]
        return *rungs, *((method, dtype) for method in library for dtype in self.dtypes)


@dataclass(frozen=True)
class RecordPlan:
    """One record: `python -m rwkv_lessons.bench` and `arguments` write it."""

    name: str
    arguments: str
    limit_s: int = 150
    table: str | None = "methods"  # a key of report/tables.py's KINDS; None: on no page
    needs: str | None = None  # a module, or a variable, without which there is nothing to compare
    named: bool = True  # --record needs the name: it is not the command's own
    gpus: int = 1  # as many are needed, of one machine
    holds: tuple = ()  # (method, dtype) of rows, or names of ceilings, that it has at least

    @property
    def command(self):
        named = f" {self.name}" if self.named else ""
        return f"{BENCH} {self.arguments} --record{named}"


def own(name, arguments, limit_s=150, table="methods", needs=None):
    """A record under its command's own name, which holds everything that the command measures."""
    return RecordPlan(name, arguments, limit_s, table, needs, named=False)


def is_here(module):
    """Whether a module can be imported; of a name in capitals, whether that variable is set."""
    return module in os.environ if module.isupper() else find_spec(module) is not None


@dataclass(frozen=True)
class Peer:
    """Somebody else's package that computes the same."""

    module: str  # or, where it is no package, an environment variable that names its checkout
    distribution: str
    adapter: str  # a function of bench/peers.py
    note: str | None = None


@dataclass(frozen=True)
class Headline:
    """A line of the README: a row of ours and a row beside it, both of one record and shape."""

    says: str
    record: str
    ours: str
    theirs: str
    whose: str
    shape: tuple[int, ...]
    dtype: str | None = None  # where the record has several


@dataclass(frozen=True)
class Operation:
    """Something that is checked, timed and recorded. Functions are named "module:function"."""

    name: str  # a command of the bench; the names of its records start with it
    says: str  # what the command does
    package: str  # of rwkv_lessons
    shapes: tuple[tuple[int, ...], ...]  # that are measured where none is asked for
    quick: tuple[int, ...]  # runs in a moment on any machine
    work: Callable[..., Work] | None  # (*shape, itemsize); None: it has no roofline
    letters: str = "B, T, H, N"  # of a shape
    timed: str = FORWARD
    # (*shape, dtype=torch's, device=) → what the methods take.
    inputs: str | None = None
    # Which of them o is like, and has the shape that `letters` names; do is it, reversed in time.
    like: int = 2
    reference: str | None = None  # (*inputs in float64) → o, or a tuple that starts with it
    slack: float = 1.0  # times the limits of bench/measure.py: a result is a difference of others
    compared: int = 1  # how many of the reference's results are held against a method's
    # (*inputs) → (what a rung reads, zero states last; what it writes: o, and as many states)
    rung_arguments: str | None = None
    # Timed are the package's METHODS and, last, its own function, but for these.
    skipped: tuple[str, ...] = ()
    functions: dict[str, str] = field(default_factory=dict)  # method → function, timed instead
    # Methods and peers whose arithmetic is matrix products on tensor cores; None: all of them.
    tensor_cores: tuple[str, ...] | None = None
    one_token: bool = False  # what is measured is a token, the state in place, and a graph of it
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # of a run that asks for none
    command: str = "run:time_methods"  # of bench/commands/
    ladders: tuple[Ladder, ...] = ()
    records: tuple[RecordPlan, ...] = ()
    peers: dict[str, Peer] = field(default_factory=dict)
    headline: Headline | None = None
    torch_loop: tuple[str, str] | None = None  # lesson and function, for `profile`
    # Names of the package, or "serving.name" of a package inside it, that reach all of its code.
    public: tuple[str, ...] = ()
    checks: Checks | None = None  # what verify looks at
    # (GPU) → (name, function) of each call whose kernels are compiled for every architecture.
    calls: str | None = None
    verified_as: dict[str, str] = field(default_factory=dict)  # method → verify's name for it

    def least(self, shape, dtype):
        """The fewest bytes and the flops, see `work`."""
        if self.work is None:
            raise ValueError(f"{self.name} has no least work")
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
        self.check_shape(shape)
        return self.work(*shape, DTYPES[dtype])

    def unit_of(self, method):
        """What computes a method, a peer or a rung: TENSOR_CORES or MULTIPLY_ADDS."""
        rungs = {rung.method: rung.tensor_cores for ladder in self.ladders for rung in ladder.rungs}
        if method in rungs:
            products = rungs[method]
        else:
            products = self.tensor_cores is None or method in self.tensor_cores
        return TENSOR_CORES if products else MULTIPLY_ADDS

    def sources(self):
        """What `public` and `functions` name, as `fingerprint` asks."""
        for name in self.public:
            *inner, name = name.split(".")
            yield "/".join(["rwkv_lessons", self.package, *inner, f"__init__.py::{name}"])
        for name in self.functions.values():
            module, _, function = name.partition(":")
            yield f"{module.replace('.', '/')}.py::{function}"

    def check_shape(self, shape):
        """Raises ValueError where a shape is not a positive number for each letter."""
        count = len(self.letters.split(", "))
        if len(shape) != count or any(n < 1 for n in shape):
            needed = f"{count} positive numbers {self.letters}"
            raise ValueError(f"shape is {tuple(shape)}, needs {needed}")

    def sizes(self, shape):
        """ "B=8 T=4096 H=64 N=64"."""
        pairs = zip(self.letters.split(", "), shape, strict=True)
        return " ".join(f"{letter}={n}" for letter, n in pairs)


def loaded(name):
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def lesson(stem):
    """The module solutions/<stem>.py, executed anew."""
    spec = spec_from_file_location(f"rung_{stem}", ROOT / f"solutions/{stem}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
