"""Which lesson or exercise a learner means by "5", "05", "float4" or "float4.kernel".

Nothing is imported to find out, so that a command answers at once.
"""

import difflib

from ..course import exercises
from ..course.outline import outline

FEW = 8  # names that a line has room for


def stem_named(which: str) -> str:
    """The lesson "NN_idea" of its number, with or without the zero, or of its idea.

    Raises:
        ValueError: there is none; the message names those that are spelled alike.
    """
    stems, lesson = exercises.stems(), which.partition(".")[0]
    matches = [stem for stem in stems if which in _names_of(stem)]
    if lesson != which and any(lesson in _names_of(stem) for stem in stems):
        raise ValueError(f"{which!r} names an exercise, needs a lesson: {lesson}")
    if not matches:
        names = {name: stem for stem in stems for name in _names_of(stem) if len(name) > 2}
        raise ValueError(f"no lesson {which!r}; {_alike(which, names, stems)}")
    return matches[0]


def ids_named(which: str) -> list[str]:
    """The exercise that is meant, or all of a lesson.

    Raises:
        ValueError: there is none, or several lessons have an exercise of this name.
    """
    lesson, dot, name = which.partition(".")
    if dot:
        ids = [exercise.id for exercise in outline(stem_named(lesson))]
        matches = [id for id in ids if id.partition(".")[2] == name]
        if not matches:
            names = {id.partition(".")[2]: id for id in ids}
            raise ValueError(f"no exercise {which!r}; {_alike(name, names, ids)}")
        return matches
    if any(which in _names_of(stem) for stem in exercises.stems()):
        ids = [exercise.id for exercise in outline(stem_named(which))]
        if not ids:
            raise ValueError(f"lesson {which} has no exercises")
        return ids
    everything = [exercise.id for exercise in outline()]
    matches = [id for id in everything if id.partition(".")[2] == which]
    if len(matches) > 1:
        raise ValueError(f"which of these? {', '.join(matches)}")
    if not matches:
        names = {id.partition(".")[2]: id for id in everything}
        stems = exercises.stems()
        names |= {name: stem for stem in stems for name in _names_of(stem) if len(name) > 2}
        raise ValueError(f"no lesson or exercise {which!r}; {_alike(which, names, stems)}")
    return matches


def closest(word: str, words) -> str | None:
    """The word that is spelled most like `word`, if any is."""
    return next(iter(difflib.get_close_matches(word, words, 1)), None)


def _names_of(stem):
    number, _, idea = stem.partition("_")
    return {stem, number, number.lstrip("0") or "0", idea}


def _alike(which, names, everything):
    if near := closest(which, list(names)):
        return f"did you mean {names[near]}?"
    if len(everything) > FEW:
        return f"there are {everything[0]} to {everything[-1]}: `lessons list` shows them"
    return f"there are {', '.join(everything)}"
