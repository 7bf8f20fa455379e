"""What there is to solve, read from the text of solutions/: nothing is imported, so it is quick."""

import ast
import dataclasses

from . import exercises


@dataclasses.dataclass(frozen=True)
class Outline:
    """One exercise, as far as its text says it. `lines` is how many the answer takes."""

    id: str
    minutes: int
    difficulty: int
    lines: int


def outline(stem: str | None = None) -> list[Outline]:
    """Every exercise in the order of the lessons, or those of one lesson."""
    stems = [stem] if stem else exercises.stems()
    files = [exercises.SOLUTIONS / f"{s}.py" for s in stems]
    return [found for file in files if file.exists() for found in _exercises(file)]


def _exercises(file):
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    ends = [node.lineno - 1 for node in tree.body[1:]] + [None]  # a marker may stand last
    sources = {
        getattr(node, "name", ""): "\n".join(text.splitlines()[node.lineno - 1 : end])
        for node, end in zip(tree.body, ends, strict=True)
    }
    for name, call in _entries(tree):
        numbers = [a.value for a in call.args[:2] if isinstance(a, ast.Constant)]
        named = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
        given = dict(zip(("minutes", "difficulty"), numbers, strict=False)) | named
        lines = exercises.lines_of_answer(sources[name])
        yield Outline(f"{file.stem}.{name}", given["minutes"], given["difficulty"], lines)


def _entries(tree):
    """(name, call of Exercise) of the dictionary `EXERCISES`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXERCISES":
            yield from ((key.value, call) for key, call in zip(
                node.value.keys, node.value.values, strict=True))  # fmt: skip
