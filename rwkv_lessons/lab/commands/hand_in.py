"""A learner's report, one Markdown file to hand in, and a class's reports as one table.

text = written("Ada Lovelace")      a table of the exercises, then the code of those attempted
rows = collected([path, …])         a row for each report, as `lessons collect` prints them
"""

import csv
import datetime
import io
import re
from pathlib import Path

import rwkv_lessons

from ..course import progress
from ..course.outline import outline
from . import notebooks

TITLE = "# Report of "
HEAD = "| exercise | solved | attempts | hints |\n|---|---|---:|---:|"
ROW = re.compile(r"^\| (\d\d_\w+\.\w+) \| (.*?) \| (\d+) \| (\d+) \|$", re.M)


def file_name(name: str) -> str:
    """Where the report of somebody goes, unless they say otherwise: report-ada-lovelace.md."""
    return "-".join(["report", *re.findall(r"\w+", name.lower())]) + ".md"


def written(name: str) -> str:
    """The report: what is solved since when, attempts and hints, and the code as it stands."""
    noted, everything = progress.load()["exercises"], outline()
    rows, pieces = [], []
    for exercise in everything:
        note = noted.get(progress.name_of(exercise.id), {})
        solved = (note.get("passed") or "no").partition("T")[0]
        rows.append(
            f"| {exercise.id} | {solved} | {note.get('attempts', 0)} | {note.get('hints', 0)} |"
        )
        if note.get("attempts") and (code := notebooks.text_of(exercise.id)):
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
            pieces.append(f"## {exercise.id}\n\n{fence}python\n{code.rstrip()}\n{fence}\n")
    solved = sum(" | no | " not in row for row in rows)
    about = f"{datetime.date.today()}, rwkv-lessons {rwkv_lessons.__version__}"
    head = f"{TITLE}{name}\n\n{solved} of {len(everything)} exercises solved; {about}.\n"
    return "\n".join([head, "\n".join([HEAD, *rows]), "", *pieces])


def hand_in(name: str, path: Path) -> None:
    """Writes the report to `path`, over an earlier one.

    Raises:
        ValueError: the name is empty or has several lines, or the file there is no report.
    """
    if not name.strip() or "\n" in name:
        raise ValueError(f"the name is {name!r}, needs one line of text")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(TITLE):
        raise ValueError(f"{path} is there and is not a report; name another file with --to")
    path.write_text(written(name.strip()), encoding="utf-8")


def collected(paths: list[Path]) -> str:
    """CSV with a line for each report: name, how many are solved, and each exercise.

    A cell has the day on which the exercise was solved, or how many attempts there were.

    Raises:
        ValueError: a file is no report.
    """
    reports = {}
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        rows = ROW.findall(text)
        if not text.startswith(TITLE) or not rows:
            raise ValueError(f"{path} is no report that `lessons report` wrote")
        reports[path] = text.splitlines()[0].removeprefix(TITLE), rows
    ids = {id for _, rows in reports.values() for id, *_ in rows}
    here = [exercise.id for exercise in outline()]
    ids = [id for id in here if id in ids] + sorted(ids - set(here))  # older lessons' last
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["name", "file", "solved", *ids])
    for path, (name, rows) in reports.items():
        cells = {
            id: solved if solved != "no" else f"{attempts} attempts" if attempts != "0" else ""
            for id, solved, attempts, _ in rows
        }
        solved = sum(solved != "no" for _, solved, *_ in rows)
        table.writerow([name, path.name, solved, *(cells.get(id, "") for id in ids)])
    return out.getvalue()
