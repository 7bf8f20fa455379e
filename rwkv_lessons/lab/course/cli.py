"""The `lessons` command: start, list, next, check, hint, reset, sync, run, doctor."""

import argparse
import sys
import traceback

from rich.console import Console
from rich.markup import escape

from . import doctor, exercises, progress
from . import notebooks as workbook
from .check import check, hint
from .modes import setup

MARKS = {doctor.OK: "[green]✓[/]", doctor.NOTE: "[yellow]·[/]", doctor.PROBLEM: "[red]✗[/]"}


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 where something is not right yet, 2 for a wrong request."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✓ shows ?
    options = parser().parse_args(argv)
    try:
        return options.run(options) or 0
    except (FileNotFoundError, LookupError, ValueError) as error:
        print(f"lessons: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lessons", description="Find your way through the lessons.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(run, help, *arguments):
        sub = commands.add_parser(run.__name__.strip("_"), help=help, description=run.__doc__)
        for names, settings in arguments:
            sub.add_argument(*names, **settings)
        sub.set_defaults(run=run)

    which = {"metavar": "ID", "help": "an exercise, 'NN_idea.name', or a lesson, 'NN'"}
    only = {"action": "store_true", "help": "change nothing; fail if something would change"}
    command(start, "copy the lessons to work/, where you solve them")
    command(list_, "every lesson and exercise, and how far you are")
    command(next_, "the next exercise you have not solved")
    command(check_, "check your notebooks' exercises", (["which"], {**which, "nargs": "?"}))
    command(hint_, "the next hint of an exercise", (["which"], which))
    command(reset, "start a lesson's exercises afresh", (["which"], which))
    command(sync, "derive the notebooks' exercises from solutions/", (["--check"], only))
    lessons = {**which, "metavar": "NN", "help": "a lesson; without, all", "nargs": "*"}
    command(run, "run the notebooks in notebooks/ and keep what they show", (["which"], lessons))
    command(doctor_, "look for what is wrong with this machine, and how to mend it")
    return top


def say(text: str = "") -> None:
    """A line in colour on a terminal, plain in a pipe, never wrapped."""
    Console(highlight=False, soft_wrap=True, emoji=False).print(text)


def start(options) -> None:
    """Copies every lesson to work/ that is not there yet. Your copies are never overwritten."""
    new, same, kept = workbook.start()
    for name in new:
        say(f"[green]new [/]  work/{name}")
    for name in kept:
        say(f"[yellow]kept[/]  work/{name}: yours, or older than the lesson")
    if same:
        say(f"as they were: {len(same)}")
    first = (new + same + kept)[:1]
    if first:
        say(f"Open them in JupyterLab: work/{first[0]}")


def list_(options) -> None:
    """Every lesson and exercise: ✓ solved, · not yet, with minutes, difficulty and hints used."""
    noted = progress.load()["exercises"]
    for stem in exercises.stems():
        say(f"[bold]{stem[:2]}[/]  {_title(stem)}")
        for id in exercises.ids(stem) if _has_answers(stem) else []:
            say(_line(id, noted.get(id, {})))


def _line(id, note):
    exercise = exercises.load(id)
    mark = "[green]✓[/]" if note.get("passed") else "·"
    difficulty = "●" * exercise.difficulty + "○" * (3 - exercise.difficulty)
    parts = [f"{exercise.minutes:>3} min", difficulty]
    parts += _count(note.get("attempts", 0), "attempt") + _count(note.get("hints", 0), "hint")
    return f"    {mark} {id:<34} " + "  ".join(parts)


def _count(number, noun):
    return [f"{number} {noun}{'s' if number > 1 else ''}"] if number else []


def next_(options) -> None:
    """The first exercise, in the lessons' order, that you have not solved."""
    noted = progress.load()["exercises"]
    for id in exercises.ids():
        if not noted.get(id, {}).get("passed"):
            exercise, stem = exercises.load(id), id.partition(".")[0]
            where = workbook.relative(workbook.notebook_of(stem))
            (lines,) = _count(exercise.lines, "line")
            say(f"{id}: {lines}, about {exercise.minutes} minutes, in {where}")
            say(f"Stuck? lessons hint {id}")
            return
    say("Every exercise is solved.")


def check_(options) -> int:
    """Checks exercises as they stand in your notebooks, without running the notebooks.

    Of the cells above an exercise only imports, definitions and constants are run. Save your
    notebook first. The exit code is 0 only if everything asked for is solved.
    """
    setup()
    results = [_check(id) for id in _chosen(options.which)]
    solved = sum(result is not None and result.passed for result in results)
    say(f"{solved} of {len(results)} solved")
    return int(solved < len(results))


def _check(id):
    """The check's result, or None where the learner's cell does not even run."""
    where = workbook.relative(workbook.notebook_of(id.partition(".")[0]))
    try:
        function = workbook.function_of(id)
    except LookupError as error:
        print(f"{id}: {error}")
        return None
    except Exception as error:
        print(f"{id}: the cell in {where} does not run")
        own = [f for f in traceback.extract_tb(error.__traceback__) if ".ipynb" in f.filename]
        print("".join(traceback.format_list(own) + traceback.format_exception_only(error)), end="")
        return None
    return check(id, function)


def hint_(options) -> None:
    """The next of an exercise's three hints."""
    ids = _chosen(options.which)
    if len(ids) > 1:
        raise ValueError(f"which of these? {', '.join(ids)}")
    hint(ids[0])


def reset(options) -> None:
    """Puts the stubs of a lesson's exercises back; your notebook from before is kept."""
    stem = _stem(options.which)
    changed, backup = workbook.reset(stem)
    where = workbook.relative(workbook.notebook_of(stem))
    if changed:
        say(f"{where}: {changed} of its exercises start afresh")
        say(f"before: {workbook.relative(backup)}. If the notebook is open, reload it from disk")
    else:
        say(f"{where}: nothing to reset")


def sync(options) -> int:
    """Derives the exercises in notebooks/ from solutions/. For those who write lessons."""
    differed = workbook.sync(write=not options.check)
    for name in differed:
        say(f"notebooks/{name}: {'differs from' if options.check else 'derived from'} solutions/")
    return int(options.check and bool(differed))


def run(options) -> None:
    """Runs notebooks in place, as shipped. For those who write lessons."""
    for stem in [_stem(which) for which in options.which] or exercises.stems():
        lesson = exercises.NOTEBOOKS / f"{stem}.ipynb"
        changed = workbook.execute(lesson)
        say(f"notebooks/{lesson.name}: {'shows something else now' if changed else 'the same'}")


def doctor_(options) -> int:
    """Looks at this machine. ✗ keeps a lesson from running, · does not; → is what to do."""
    found = doctor.examine()
    for finding in found:
        say(f"{MARKS[finding.level]} {escape(finding.text)}")
        if finding.fix:
            say(f"  → {escape(finding.fix)}")
    problems = sum(finding.level == doctor.PROBLEM for finding in found)
    say(f"{problems} to mend" if problems else "The lessons run here.")
    return int(problems > 0)


def _chosen(which):
    """Exercise ids of 'NN_idea.name', of 'NN', 'NN_idea', or of everything."""
    if which is None:
        return exercises.ids()
    if "." in which:
        return [exercises.load(which).id]
    ids = exercises.ids(_stem(which))
    if not ids:
        raise ValueError(f"lesson {which} has no exercises")
    return ids


def _stem(which):
    found = [stem for stem in exercises.stems() if stem == which or stem.split("_")[0] == which]
    if not found:
        raise ValueError(f"no lesson {which!r}; there are {', '.join(exercises.stems())}")
    return found[0]


def _has_answers(stem):
    return (exercises.SOLUTIONS / f"{stem}.py").exists()


def _title(stem):
    return stem.partition("_")[2].replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
