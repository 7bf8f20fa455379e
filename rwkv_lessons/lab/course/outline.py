"""What there is to solve, read from the text of solutions/: nothing is imported, so it is quick."""

import ast
import dataclasses
import functools

from . import exercises


@dataclasses.dataclass(frozen=True)
class Outline:
    """One exercise, as far as its text says it.

    `lines` is how many the answer takes, `more` whether a version with gaps follows the last hint.
    """

    id: str
    minutes: int
    difficulty: int
    lines: int
    hints: tuple[str, ...]
    more: bool


def outline(stem: str | None = None) -> list[Outline]:
    """Every exercise in the order of the lessons, or those of one lesson."""
    stems = [stem] if stem else exercises.stems()
    files = [exercises.SOLUTIONS / f"{s}.py" for s in stems]
    files = [(file, file.stat().st_mtime_ns) for file in files if file.exists()]
    return [exercise for file in files for exercise in _exercises(*file)]


@functools.cache
def _exercises(file, _version):
    text, outlines = file.read_text(encoding="utf-8"), []
    for name, call in _entries(exercises.parsed(text)):
        values = dict(zip(("minutes", "difficulty", "hints"), call.args, strict=False))
        values |= {keyword.arg: keyword.value for keyword in call.keywords}
        minutes, difficulty, hints = (
            ast.literal_eval(values[x]) for x in ("minutes", "difficulty", "hints")
        )
        source = exercises.source_in(text, name)
        lines, more = exercises.lines_of_answer(source), bool(exercises.GAP.search(source))
        outlines.append(
            Outline(f"{file.stem}.{name}", minutes, difficulty, lines, tuple(hints), more)
        )
    return outlines


def _entries(tree):
    """(name, call of Exercise) of the dictionary `EXERCISES`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXERCISES":
            yield from ((key.value, call) for key, call in zip(
                node.value.keys, node.value.values, strict=True))  # fmt: skip
