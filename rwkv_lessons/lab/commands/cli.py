"""The `lessons` command: the learner's way, and what those need who write lessons."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape

import rwkv_lessons

from ..course import exercises, predict, progress
from ..course.check import check, hint
from ..course.modes import setup
from ..course.outline import outline
from ..course.terminal import without_latex
from . import hand_in, review
from . import notebooks as workbook
from .attended import attended
from .companion import accompany, first_unsolved
from .named import closest, ids_named, stem_named

ELSEWHERE = {"trace": "warplens trace"}  # commands of another package that this one installs
MARKS = {"ok": "[green]✓[/]", "note": "[yellow]·[/]", "problem": "[red]✗[/]"}


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 where something is not right yet, 2 for a wrong request."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✓ shows ?
    argv = sys.argv[1:] if argv is None else argv
    commands = parser()
    if argv and not argv[0].startswith("-") and (suggestion := _meant(argv[0], commands)):
        print(f"lessons: no command {argv[0]!r}; {suggestion}", file=sys.stderr)
        return 2
    options = commands.parse_args(argv)
    try:
        return options.run(options) or 0
    except (LookupError, OSError, ValueError) as error:
        file, why = getattr(error, "filename", None), getattr(error, "strerror", None)
        print(f"lessons: {f'{file}: {why}' if file and why else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        message = "; ".join(["interrupted", *interrupt.args])
        print(f"{options.run.__name__.strip('_')}: {message}", file=sys.stderr)
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lessons", description="Find your way through the lessons.")
    top.add_argument("--version", action="version", version=f"%(prog)s {rwkv_lessons.__version__}")
    top.set_defaults(run=here)
    commands = top.add_subparsers(metavar="COMMAND", dest="command")

    def command(run, help, *arguments):
        sub = commands.add_parser(run.__name__.strip("_"), help=help, description=run.__doc__)
        for names, settings in arguments:
            sub.add_argument(*names, **settings)
        sub.set_defaults(run=run)

    which = {"metavar": "ID", "help": "an exercise, 'NN_idea.name', or a lesson, 'NN'"}
    only = {"action": "store_true", "help": "change nothing; fail if something would change"}
    spoken = {"metavar": "LANG", "help": "the language to read in from now on: en, zh"}
    command(start, "copy the lessons to work/, where you solve them", (["--lang"], spoken))
    command(progress_, "how far you are, lesson by lesson")
    command(list_, "every lesson and exercise, and how far you are")
    command(next_, "the next exercise you have not solved")
    gap = {"type": int, "metavar": "K", "help": "only the gap K of an exercise, from 1"}
    every = {**which, "help": f"{which['help']}; default: every exercise", "nargs": "?"}
    checked = (["which"], every), (["--gap"], gap)
    command(check_, "check your notebooks' exercises", *checked)
    next_one = (["which"], {**which, "help": f"{which['help']}; default: the next", "nargs": "?"})
    command(watch_, "check a lesson again whenever you save its notebook", next_one)
    command(hint_, "the next hint of an exercise", next_one)
    command(review_, "repeat wrong predictions, two lessons later")
    command(questions, "a lesson's questions once more, and their answers", (["which"], which))
    command(reset, "start a lesson's exercises afresh", (["which"], which))
    student = {"metavar": "NAME", "help": "your name, for the report"}
    to = {"metavar": "FILE", "type": Path, "help": "default: report- and the name in small letters"}
    command(
        report,
        "write what you solved and your code into one file",
        (["name"], student),
        (["--to"], to),
    )
    files = {"metavar": "FILE", "type": Path, "nargs": "+", "help": "what `lessons report` wrote"}
    command(collect, "a class's reports as one table, in CSV", (["files"], files))
    name = {"metavar": "NN_idea", "help": "the number and name of the lesson"}
    command(new, "begin a lesson: write its notebook, solution and wrong answers", (["stem"], name))
    command(sync, "derive the notebooks' exercises from solutions/", (["--check"], only))
    lessons = {**which, "metavar": "NN", "help": "a lesson; without, all", "nargs": "*"}
    command(run, "run the notebooks in notebooks/ and keep what they show", (["which"], lessons))
    tongue = {"metavar": "LANG", "help": "such as zh"}
    stamp = {"action": "store_true", "help": "mark translations without a mark as up to date"}
    command(translations, "what is left to translate", (["lang"], tongue), (["--stamp"], stamp))
    command(doctor_, "look for what is wrong with this machine, and how to fix it")
    return top


def _meant(word, commands):
    """What to type instead of `word`; None where it is a command."""
    (names,) = (a.choices for a in commands._actions if a.dest == "command")
    if word in names:
        return None
    if near := ELSEWHERE.get(word) or closest(word, names):
        return f"did you mean {near}?"
    try:
        ids_named(word)
    except (OSError, ValueError):
        return "`lessons --help` lists them"
    return f"did you mean lessons check {word}, or lessons hint {word}?"


def say(text: str = "") -> None:
    """A line in colour on a terminal, plain in a pipe, never wrapped."""
    Console(highlight=False, soft_wrap=True, emoji=False).print(text)


def show(text: str) -> None:
    """A piece of a lesson, as far as a terminal can show it."""
    Console(width=min(100, Console().width)).print(Markdown(without_latex(text)), "")


def start(options) -> None:
    """Copies the lessons to work/. A copy that you changed is never overwritten.

    With --lang, lessons that are translated are copied in that language, and what checks and hints
    say is in it too, until you choose another one.
    """
    if options.lang:
        workbook.speak(options.lang)
    became = workbook.start()
    for name in became["new"]:
        say(f"[green]new    [/]  work/{name}")
    for name in became["moved"]:
        say(f"[yellow]moved  [/]  work/{name}: the lesson has another number now")
    for name in became["updated"]:
        say(f"[green]updated[/]  work/{name}: the lesson is newer, and you had not changed it")
    for name in became["kept"]:
        say(f"[yellow]kept   [/]  work/{name}: you changed it")
    if became["same"]:
        say(f"as they were: {len(became['same'])}")
    if first := sorted(sum(became.values(), []))[:1]:
        say(f"Begin in JupyterLab with work/{first[0]}")


def progress_(options) -> None:
    """A line for each lesson with a mark for each of its exercises, and what is left."""
    noted = _noted()
    minutes = solved = 0
    everything = outline()
    for stem in dict.fromkeys(e.id.partition(".")[0] for e in everything):
        here = [e for e in everything if e.id.startswith(f"{stem}.")]
        passed, marks = _marks(here, noted)
        solved += sum(passed)
        minutes += sum(
            e.minutes for e, is_solved in zip(here, passed, strict=True) if not is_solved
        )
        say(f"{stem[:2]}  {_title(stem):28} {marks}")
    hours = f"{minutes // 60} h {minutes % 60:02} min"
    say(f"{solved} of {len(everything)} solved, about {hours} of exercises to go")


def _marks(here, noted):
    """Which of a lesson's exercises are solved, and a mark for each."""
    passed = [bool(noted.get(exercise.id, {}).get("passed")) for exercise in here]
    return passed, "".join("[green]✓[/]" if is_solved else "·" for is_solved in passed)


def list_(options) -> None:
    """Every lesson and exercise: ✓ solved, · not yet, with minutes, difficulty and hints used."""
    noted = _noted()
    for stem in exercises.stems():
        say(f"[bold]{stem[:2]}[/]  {_title(stem)}")
        for exercise in outline(stem):
            say(_line(exercise, noted.get(exercise.id, {})))


def _noted():
    """What is noted of each exercise, by id."""
    noted = progress.load()["exercises"]
    return {e.id: noted.get(progress.name_of(e.id), {}) for e in outline()}


def _line(exercise, note):
    mark = "[green]✓[/]" if note.get("passed") else "·"
    difficulty = "●" * exercise.difficulty + "○" * (3 - exercise.difficulty)
    parts = [f"{exercise.minutes:>2} min", difficulty]
    parts += _count(note.get("attempts", 0), "attempt") + _count(note.get("hints", 0), "hint")
    return f"    {mark} {exercise.id:<38} " + "  ".join(parts)


def _count(number, noun):
    return [f"{number} {noun}{'s' if number > 1 else ''}"] if number else []


def here(options) -> None:
    """Where you are and what is next; on a terminal, that exercise is watched."""
    say(f"{_solved()} `lessons --help` lists the commands.")
    next_(options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return

    def checked(id):
        say(f"[dim]checking {id}[/]")
        results = attended(lambda done: [id] if not done else [], _check)
        return any("passed" in (rows or ()) for _, rows in results)

    commands = {
        "h": hint,
        "l": lambda id: _overview(id.partition(".")[0]),
        "r": lambda id: _reset(id.partition(".")[0]),
    }
    accompany(
        say, lambda: first_unsolved(_noted()), commands, checked, lambda: say(f"\n{_solved()}")
    )


def _solved():
    noted = _noted().values()
    return f"{sum(bool(note.get('passed')) for note in noted)} of {len(noted)} exercises solved."


def _overview(stem):
    """A line for each lesson, and one for each exercise of this one."""
    noted = _noted()
    for lesson in exercises.stems():
        _, marks = _marks(outline(lesson), noted)
        say(f"{lesson[:2]}  {_title(lesson):28} {marks}")
        for exercise in outline(lesson) if lesson == stem else ():
            say(_line(exercise, noted[exercise.id]))


def next_(options) -> None:
    """The first exercise, in the lessons' order, that you have not solved."""
    noted = _noted()
    if waiting := review.due():
        (many,) = _count(len(waiting), "prediction")
        say(f"{many} to make again: lessons review")
    if (id := first_unsolved(noted)) is None:
        say("Every exercise is solved.")
        return
    exercise = next(exercise for exercise in outline() if exercise.id == id)
    where = workbook.relative(workbook.notebook_of(id.partition(".")[0]))
    (lines,) = _count(exercise.lines, "line")
    say(f"{id}: {lines}, about {exercise.minutes} minutes, in {where}")
    say(f"Stuck? lessons hint {id}")


def check_(options) -> int:
    """Checks exercises as they stand in your notebooks, without running the notebooks.

    Of the cells above an exercise's check, only what its function depends on is run. Save your
    notebook first. Lessons that you have not begun are only counted. The exit code is 0 only if
    everything asked for is solved.
    """
    chosen = ids_named(options.which) if options.which else None
    say(f"[dim]checking {', '.join(chosen or ['every exercise'])}[/]")  # imports take seconds
    chosen = chosen or exercises.ids()
    if options.gap and len(chosen) > 1:
        raise ValueError(f"--gap is for one exercise; which of these? {', '.join(chosen)}")

    waiting = _of_lessons_not_begun(chosen) if len(chosen) > 1 else []
    begun = [id for id in chosen if id not in waiting]

    def remaining(done):
        setup()  # in the process that checks: two cannot share a GPU's state
        yield from begun[len(done) :]

    checked = attended(remaining, lambda id: _check(id, options.gap)) if begun else ()
    results = []
    try:
        for _, rows in checked:
            results.append(rows)
    except KeyboardInterrupt:
        solved = _count_solved(results)
        message = f"{len(results)} of {len(begun)} checked, {solved} of them solved"
        raise KeyboardInterrupt(message) from None
    if options.gap:
        return int("right" not in (results[0] or ()))
    if waiting:
        (many,) = _count(len(waiting), "exercise")
        (lessons,) = _count(len({id.partition(".")[0] for id in waiting}), "lesson")
        say(f"{many} in {lessons} not attempted yet; `lessons next` shows the next one")
    solved = _count_solved(results)
    say(f"{solved} of {len(chosen)} solved")
    return int(solved < len(chosen))


def _count_solved(results):
    return sum("passed" in (rows or ()) for rows in results)


def _of_lessons_not_begun(ids):
    """Those of lessons in which each of these cells is as the lesson has it."""
    begun = {id.partition(".")[0] for id in ids if workbook.text_of(id) != exercises.stub(id)}
    return [id for id in ids if id.partition(".")[0] not in begun]


def watch_(options) -> None:
    """Checks a lesson's exercises, then whenever you save its notebook those that changed.

    Ends with Ctrl-C.
    """
    chosen = _named_or_next(options.which)

    def remaining(done):
        setup()
        for id in changes(chosen, known_texts=dict(done)):
            yield id, workbook.text_above(id)

    try:
        for _ in attended(remaining, lambda item: _check(item[0])):
            pass
    except KeyboardInterrupt:
        say()


def changes(ids: list[str], seconds: float = 0.5, known_texts: dict | None = None) -> Iterator[str]:
    """Each id at once, and again whenever its cells in the notebook are saved with other text.

    But for those whose text is that in `known_texts`, {id: text}.
    """
    path, saved, known_texts = (
        workbook.notebook_of(ids[0].partition(".")[0]),
        None,
        known_texts or {},
    )
    while True:
        now = path.stat().st_mtime_ns if path.exists() else None
        if now not in (saved, None):
            saved = now
            texts = {id: workbook.text_above(id) for id in ids}
            yield from [id for id in ids if texts[id] != known_texts.get(id)]
            known_texts = texts
            say(f"[dim]Waiting until {workbook.relative(path)} is saved; Ctrl-C ends this.[/]")
        time.sleep(seconds)


def _named_or_next(which):
    """The exercises that are meant; where nothing is said, those of the next one's lesson."""
    if which is None:
        id = first_unsolved(_noted())
        which = id.partition(".")[0] if id else exercises.stems()[-1]
    return ids_named(which)


def _check(id, gap=None):
    """What the check found, "right" and "passed"; not where the learner's cell does not run."""
    where = workbook.relative(workbook.notebook_of(id.partition(".")[0]))
    try:
        function = workbook.function_of(id)
    except LookupError as error:
        print(f"{id}: {error}")
        return ()
    except Exception as error:
        print(f"{id}: the cell in {where} does not run")
        own = [f for f in traceback.extract_tb(error.__traceback__) if ".ipynb" in f.filename]
        print("".join(traceback.format_list(own) + traceback.format_exception_only(error)), end="")
        return ()
    result = check(id, function, gap)
    return [name for name in ("right", "passed") if getattr(result, name)]


def hint_(options) -> None:
    """The next of an exercise's three hints; for a lesson, of its first unsolved exercise."""
    ids, noted = _named_or_next(options.which), _noted()
    waiting = [id for id in ids if not noted[id].get("passed")]
    id = (waiting or ids)[0]
    if len(ids) > 1:
        say(f"[dim]{id}[/]")
    hint(id)


def review_(options) -> None:
    """Asks again for predictions that were wrong, once you are two lessons further.

    An answer within a quarter is right. Enter alone postpones one, Ctrl-D all of them.
    """
    waiting = review.due()
    for prediction in waiting:
        say(f"\n[bold]{prediction.stem[:2]} {_title(prediction.stem)}[/]")
        show(prediction.question)
        say(f"You said {predict.show(prediction.guess)} {prediction.unit}".rstrip() + ".")
        if (value := _number(f"Now, in {prediction.unit or 'numbers'}? ")) is None:
            continue
        right = review.answered(prediction, value)
        came = f"{predict.show(prediction.outcome)} {prediction.unit}".rstrip()
        say(f"{came}: {predict.factor(value, prediction.outcome)}")
        if not right:
            where = workbook.relative(workbook.notebook_of(prediction.stem))
            say(f"Look again at {where}; in two lessons you are asked once more.")
    if not waiting:
        say("No prediction to repeat now. Wrong ones come back two lessons later.")


def _number(prompt):
    """A number of at least 0 that somebody types; None for Enter alone."""
    while text := _typed(prompt).replace(",", "").strip():
        try:
            if (value := float(text)) >= 0:
                return value
        except ValueError:
            pass
        say("a number of at least 0, please")
    return None


def _typed(prompt):
    """A line; the end of what there is to read ends the command."""
    try:
        return input(prompt)
    except EOFError:
        say()
        raise SystemExit(0) from None


def questions(options) -> None:
    """A lesson's questions, one by one; Enter shows the answer."""
    stem = stem_named(options.which)
    prompts = review.questions(stem)
    for n, (question, answer) in enumerate(prompts, 1):
        show(f"**{n}.** {question}")
        _typed("Enter shows the answer. ")
        show(answer)
    if not prompts:
        say(f"lesson {stem} has no questions")


def reset(options) -> None:
    """Puts the stubs of a lesson's exercises back and keeps a backup of your notebook."""
    _reset(stem_named(options.which))


def _reset(stem):
    say(f"[dim]resetting {stem}[/]")  # to import nbformat takes a second
    changed, backup = workbook.reset(stem)
    where = workbook.relative(workbook.notebook_of(stem))
    if changed:
        say(f"{where}: {changed} of its exercises start afresh")
        say(f"before: {workbook.relative(backup)}. If the notebook is open, reload it from disk")
    else:
        say(f"{where}: nothing to reset")


def report(options) -> None:
    """Writes one Markdown file to hand in: what is solved since when, attempts, hints, your code.

    Save your notebooks first. Nothing is checked again, and nothing is sent anywhere.
    """
    path = options.to or Path(hand_in.file_name(options.name))
    hand_in.hand_in(options.name, path)
    say(f"written: {escape(str(path))}")


def collect(options) -> None:
    """Prints a line for each report, and for each exercise the day it was solved or the attempts.

    `lessons collect reports/*.md > class.csv` opens in any spreadsheet.
    """
    print(hand_in.collected(options.files), end="")


def new(options) -> None:
    """Writes a draft that passes the tests of structure. For those who write lessons."""
    from .draft import write

    for path in write(options.stem):
        say(f"[green]new[/]  {workbook.relative(path)}")
    say(f"Then: lessons sync, lessons run {options.stem[:2]}; docs/writing_a_lesson.md")


def sync(options) -> int:
    """Derives exercises, minutes and links to the next lesson. For those who write lessons."""
    differed = workbook.sync(write=not options.check)
    for name in differed:
        say(f"notebooks/{name}: {'differs from' if options.check else 'derived from'} solutions/")
    return int(options.check and bool(differed))


def run(options) -> None:
    """Runs notebooks in place, as shipped. For those who write lessons."""
    for stem in [stem_named(which) for which in options.which] or exercises.stems():
        lesson = exercises.NOTEBOOKS / f"{stem}.ipynb"
        say(f"[dim]running {stem}[/]")
        try:
            changed = workbook.execute(lesson)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"notebooks/{lesson.name} is as it was") from None
        say(f"notebooks/{lesson.name}: {'shows something else now' if changed else 'the same'}")


def translations(options) -> int:
    """What is old (its English has changed), missing, or of nothing any more, in a language.

    Bring an old block up to date, remove the mark behind its label, and run this with --stamp.
    """
    say("[dim]comparing translations with the English[/]")  # imports take seconds
    from . import translated

    if options.stamp:
        say(f"marked as up to date: {translated.stamp(options.lang)}")
    pending = translated.state(options.lang)
    for status, names in pending.items():
        for name in names:
            say(f"{status:8} {escape(name)}")
    say(", ".join(f"{len(names)} {status}" for status, names in pending.items()))
    return int(any(pending.values()))


def doctor_(options) -> int:
    """Looks at this machine. ✗ keeps a lesson from running, · does not; → is what to do."""
    say("[dim]looking at this machine[/]")  # imports take seconds
    from . import doctor

    findings = doctor.examine()
    for finding in findings:
        say(f"{MARKS[finding.level]} {escape(finding.text)}")
        if finding.fix:
            say(f"  → {escape(finding.fix)}")
    problems = sum(finding.level == doctor.PROBLEM for finding in findings)
    say(f"{problems} to fix" if problems else "The lessons run here.")
    return int(problems > 0)


def _title(stem):
    return stem.partition("_")[2].replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
