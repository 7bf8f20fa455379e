"""What a lesson says of its neighbours and of effort: derived, so that it never leads nowhere.

The number in the title is the file's; the last line links to the next lesson that there is, and to
the one before; the text above an exercise ends with its minutes and difficulty, *20 minutes · ●●○*.
"""

import re
from pathlib import Path

import nbformat

from ..course import exercises, outline

TITLE = re.compile(r"^# (\d+) · (.+)$", re.M)
NEXT = re.compile(r"^Next: \[[^]]+\]\([^)]+\)(?: · Before: \[[^]]+\]\([^)]+\))?$")
EFFORT = re.compile(r"\*\d+ minutes · [●○]{3}\*")
LAST = "Next: [the results, on one page](../README.md)"


def title(path: Path) -> str:
    """'05 · float4': the number of the file and the words of its heading."""
    match = TITLE.search(nbformat.read(path, 4).cells[0].source)
    return f"{path.stem[:2]} · {match[2] if match else path.stem[3:].replace('_', ' ')}"


def derive(notebook, path: Path) -> int:
    """Puts up the signposts of the lesson at `path`; counts the cells that changed."""
    cells = notebook.cells
    before = [cell.source for cell in cells]
    cells[0].source = TITLE.sub(f"# {path.stem[:2]} · \\2", cells[0].source, count=1)
    lines = cells[-1].source.rstrip().splitlines()
    if NEXT.match(lines[-1]):
        lines.pop()
    cells[-1].source = "\n".join(lines).rstrip() + "\n\n" + next_line(path)
    efforts = {e.id: exercises.effort(e.minutes, e.difficulty) for e in outline.outline(path.stem)}
    for cell, id in above_exercises(cells):
        effort = f"*{efforts[id]}*"
        text, count = EFFORT.subn(effort, cell.source)
        cell.source = text if count else f"{cell.source}\n\n{effort}"
    return sum(cell.source != old for cell, old in zip(cells, before, strict=True))


def next_line(path: Path) -> str:
    """Links to the next lesson in the same folder, or the README, and to the one before."""
    lessons = sorted(path.parent.glob("[0-9]*.ipynb"))
    later = [p for p in lessons if p.name > path.name]
    earlier = [p for p in lessons if p.name < path.name]
    line = f"Next: [{title(later[0])}]({later[0].name})" if later else LAST
    return line + (f" · Before: [{title(earlier[-1])}]({earlier[-1].name})" if earlier else "")


def above_exercises(cells) -> list:
    """(the last text above it, its id) for each exercise."""
    texts, text = [], None
    for cell in cells:
        text = cell if cell.cell_type == "markdown" else text
        if id := cell.metadata.get("exercise"):
            texts.append((text, id))
    return texts
