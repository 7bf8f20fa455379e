"""Exercises: the answer lives in solutions/; stub, solution and reference are derived from it."""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS, SOLUTIONS = ROOT / "notebooks", ROOT / "solutions"

REGION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION\n", re.S | re.M)
MARKER = re.compile(r"^[ \t]*### (?:BEGIN|END) (?:SOLUTION|GAP)\n", re.M)
WHOLE = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION\n", re.M)
GAP = re.compile(r"^([ \t]*### (?:BEGIN|END)) GAP$", re.M)


@dataclasses.dataclass(frozen=True)
class Afterwards:
    """What a learner reads who has solved an exercise.

    Args:
        why: lines of the solution that do the work, as they stand there → what each is for.
        instead: another way → what it costs or gains.
        stretch: one challenge that goes further.
    """

    why: dict[str, str]
    instead: dict[str, str]
    stretch: str


@dataclasses.dataclass(frozen=True)
class Exercise:
    """What a lesson asks for: an entry of a solution module's `EXERCISES`, by function name.

    Args:
        minutes: time a learner should plan for.
        difficulty: 1 (follow the text) to 3 (find the idea).
        afterwards: shown once the check has passed.
        hints: three tiers: where to look, what to do, nearly the line. Where the solution has
            gaps marked in it, the `guided` version follows the third.
        evidence: functions of (the learner's function, this exercise) that return a `Row`, or some.
        symptoms: name of a failing case → the hint that fits it; goes before `hints.HINTS`.
    """

    minutes: int
    difficulty: int
    hints: tuple[str, str, str]
    evidence: tuple[Callable, ...]
    symptoms: dict[str, str] = dataclasses.field(default_factory=dict)
    afterwards: Afterwards | None = None
    id: str = ""
    source: str = ""  # of the function in the solution module, markers and all
    reference: Callable | None = None  # the solution, as if typed into the notebook's cell

    @property
    def stub(self) -> str:
        """What the notebook shows before the learner starts."""
        return stub_of(self.source)

    @property
    def solution(self) -> str:
        return MARKER.sub("", self.source + "\n").rstrip("\n")

    @property
    def lines(self) -> int:
        """How many lines of code the answer takes, comments and blank lines aside."""
        return lines_of_answer(self.source)

    @property
    def gaps(self) -> int:
        """How many pieces the learner writes."""
        return len(REGION.findall(self.source + "\n"))

    @property
    def guided(self) -> "Exercise | None":
        """The exercise with most of its answer given and the gaps in it left; None without gaps.

        A whole kernel is asked for by its signature. What stands between `### BEGIN GAP` and
        `### END GAP` is what remains to write for those who want more help.
        """
        if not GAP.search(self.source):
            return None
        inside = WHOLE.sub("", self.source + "\n").rstrip("\n")
        return dataclasses.replace(self, source=GAP.sub(r"\1 SOLUTION", inside))

    @property
    def effort(self) -> str:
        """Minutes and difficulty, as the text of the lesson has them."""
        return effort(self.minutes, self.difficulty)


def effort(minutes: int, difficulty: int) -> str:
    return f"{minutes} minutes · {'●' * difficulty}{'○' * (3 - difficulty)}"


def stub_of(source: str) -> str:
    """A function of a solution as the notebook has it before the learner starts."""
    return REGION.sub(_todo, source + "\n").rstrip("\n")


def lines_of_answer(source: str) -> int:
    return sum(_count(region[1]) for region in REGION.findall(source + "\n"))


def _count(code):
    return sum(1 for line in code.splitlines() if line.strip() and not line.strip().startswith("#"))


def _todo(match):
    indent, count = match[1], _count(match[2])
    lines = "1 line" if count == 1 else f"{count} lines"
    return f"{indent}# your code: about {lines}\n{indent}raise NotImplementedError\n"


def source_of(function) -> str:
    """The text of a function or of a kernel of numba or Triton, with its decorators."""
    while not inspect.isfunction(function):  # Triton's decorators may stand on each other
        inner = getattr(function, "py_func", None) or getattr(function, "fn", None)
        if inner is None:
            break
        function = inner
    return inspect.getsource(function).rstrip("\n")


def attempted(function) -> bool:
    """False while the stub's `raise NotImplementedError` stands.

    Read from the text: run on a GPU, a kernel that raises compiles to an empty one.
    """
    tree = parsed(source_of(function))
    raised = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return not any("NotImplementedError" in ast.unparse(exc) for exc in raised if exc)


@functools.lru_cache(64)
def parsed(text: str) -> ast.Module:
    """The syntax tree of a function's or a file's text: all read it, nobody changes it."""
    return ast.parse(textwrap.dedent(text))


def stems() -> list[str]:
    """The lessons, in order: every stem that has a notebook or a solution."""
    if not SOLUTIONS.is_dir():
        raise FileNotFoundError(f"no lessons at {ROOT}: install the repository with `make lab`")
    files = [*NOTEBOOKS.glob("[0-9]*.ipynb"), *SOLUTIONS.glob("[0-9]*.py")]
    return sorted({file.stem for file in files})


def module(path: Path):
    """Imports a file whose name need not be an identifier, once per version of the file."""
    return _module(path, path.stat().st_mtime_ns)


@functools.cache
def _module(path, _version):
    name = "solutions." + ".".join(path.relative_to(SOLUTIONS).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # so that inspect finds the source
    spec.loader.exec_module(loaded)
    return loaded


def solutions(stem: str):
    """The solution module of a lesson; its rungs, launches and EXERCISES."""
    path = SOLUTIONS / f"{stem}.py"
    if not path.exists():
        raise ValueError(f"no lesson {stem!r}; there are {', '.join(stems())}")
    return module(path)


def ids(stem: str | None = None) -> list[str]:
    """Every exercise as 'NN_idea.name', in the order of the lessons.

    Without a stem, lessons in Triton are left out where there is no Triton.
    """
    chosen = [stem] if stem else [s for s in stems() if (SOLUTIONS / f"{s}.py").exists()]
    names = []
    for s in chosen:
        try:
            names += [f"{s}.{name}" for name in getattr(solutions(s), "EXERCISES", {})]
        except ModuleNotFoundError as error:
            if stem or error.name != "triton":
                raise
    return names


def load(id: str) -> Exercise:
    """The exercise 'NN_idea.name'."""
    stem, _, name = id.partition(".")
    entries = getattr(solutions(stem), "EXERCISES", {})
    if name not in entries:
        names = ", ".join(ids(stem)) or "none"
        raise ValueError(f"no exercise {id!r}; this lesson has {names}")
    answer = getattr(solutions(stem), name)
    exercise = dataclasses.replace(entries[name], id=id, source=source_of(answer))
    return dataclasses.replace(exercise, reference=defined(id, exercise.solution, f"<{id}>"))


@functools.cache
def defined(id: str, text: str, file: str) -> Callable:
    """The function that `text` defines, as if typed into a notebook's cell of the lesson.

    Args:
        id: the exercise, whose name the function has and whose solution's file says what it knows.
        text: its lines have the numbers of a cell's; inspect and tracebacks show them.
        file: what these call the text.
    """
    stem, _, name = id.partition(".")
    namespace = dict(vars(solutions(stem)))
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def stub(id: str) -> str:
    """Its stub, from the text of the solution: to import that takes seconds."""
    stem, _, name = id.partition(".")
    path = SOLUTIONS / f"{stem}.py"
    source = source_in(path.read_text(encoding="utf-8"), name) if path.exists() else None
    return stub_of(source) if source else load(id).stub


def source_in(text: str, name: str) -> str | None:
    """A function's text, with decorators and the marker that may stand last; None without one."""
    for node in parsed(text).body:
        if getattr(node, "name", None) == name:
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            lines = text.splitlines(keepends=True)[first - 1 :]
            return "".join(inspect.getblock(lines)).rstrip("\n")
    return None


def solved(id: str) -> str:
    return load(id).solution
