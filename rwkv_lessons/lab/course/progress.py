"""What a learner has done: one small JSON file, safe against crashes and two notebooks at once.

Notes are kept by the lesson's name, "float4.kernel", so that they survive when lessons get other
numbers; every function takes an id with the number that the lesson has now. The file lies in
`.rwkv_lessons/progress.json`, which git ignores. The environment variable RWKV_LESSONS_PROGRESS
names another file, or `off`: then notes are kept in memory only, as in tests.
"""

import contextlib
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

VARIABLE = "RWKV_LESSONS_PROGRESS"
DEFAULT = Path(__file__).resolve().parents[3] / ".rwkv_lessons" / "progress.json"
TIERS = 3
PATIENCE = 10  # seconds to wait for another notebook; a write takes milliseconds

_memory: dict = {}  # what is kept where there is no file
_printed_once: set[str] = set()


def path() -> Path | None:
    """The file, or None where progress is kept in memory only."""
    chosen = os.environ.get(VARIABLE, "")
    return None if chosen == "off" else Path(chosen or DEFAULT)


def load() -> dict:
    """Everything noted so far, under `name_of` the ids.

    Returns:
        `exercises`: name → `attempts`, `hints` (tiers seen), `unfolded` (of those, since the last
        pass), `passed` (time of the first pass, ISO, or None) and `source` (hash of the last
        attempt). `predictions`: name → `value`, `time`, and what is known since: `outcome`,
        `unit`, and of a review `asked_in`, a lesson's name, and `known`, a time.
    """
    return _change(lambda data: data, write=False)


def name_of(id: str) -> str:
    """What an id or a lesson is called whatever its number: "float4.kernel" of 05_float4.kernel."""
    return re.sub(r"^\d\d_", "", id)


def note_check(id: str, passed: bool, source: str) -> None:
    """Counts an attempt. The same source checked again is no new attempt."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]

    def change(data):
        entry = _exercise(data, id)
        entry["attempts"] += entry["source"] != digest
        entry["source"] = digest
        if passed:
            entry["passed"] = entry["passed"] or _now()
            entry["unfolded"] = 0

    _change(change)


def note_hint(id: str) -> int:
    """Counts a hint and returns its tier: 1, 2, 3 and then 3 again; after a pass from 1 again."""

    def change(data):
        entry = _exercise(data, id)
        entry["unfolded"] = min(entry.get("unfolded", entry["hints"]) + 1, TIERS)
        entry["hints"] = max(entry["hints"], entry["unfolded"])
        return entry["unfolded"]

    return _change(change)


def note_prediction(id: str, value: float) -> None:
    """Keeps the number predicted for `id` instead of an earlier one."""
    json.dumps(value)  # raises TypeError before anything is touched
    note = {"value": value, "time": _now()}
    _change(lambda data: data["predictions"].update({name_of(id): note}))


def prediction(id: str) -> float | None:
    """The number predicted for `id`, or None."""
    return load()["predictions"].get(name_of(id), {}).get("value")


def note_outcome(id: str, value: float, unit: str = "") -> None:
    """Keeps what came out beside the number predicted for `id`, if there is one."""
    note = {"outcome": value, "unit": unit}
    earlier = load()["predictions"].get(name_of(id))
    if earlier is not None and not note.items() <= earlier.items():
        _change(lambda data: data["predictions"].get(name_of(id), {}).update(note))


def note_review(name: str, right: bool, lesson: str) -> None:
    """Keeps how a prediction went that was asked for again.

    Args:
        name: of the prediction, as in `load`.
        right: whether the number was right now.
        lesson: the one that the learner is at; a wrong one comes back two lessons after it.
    """
    note = {"asked_in": name_of(lesson), "known": _now() if right else None}
    _change(lambda data: data["predictions"][name].update(note))


def language() -> str | None:
    """The language that `lessons start --lang` was given, or None."""
    return load().get("language")


def note_language(language: str) -> None:
    """Keeps the language in which the lessons speak."""
    _change(lambda data: data.update(language=language))


def _exercise(data, id):
    new = {"attempts": 0, "hints": 0, "unfolded": 0, "passed": None, "source": None}
    return data["exercises"].setdefault(name_of(id), new)


def _now():
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _change(change, write=True):
    """Reads, changes and writes under a lock, so that no notebook undoes another's note."""
    file = path()
    if file is None:
        return change(_complete(_memory))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=PATIENCE):
            data = _read(file)
            result = change(data)
            if write:
                _write(file, data)
            return result
    except (OSError, Timeout) as error:  # a lesson goes on where nothing can be written
        why = getattr(error, "strerror", None) or error
        _say(f"progress is not kept: {file} cannot be written ({why})")
        if not _memory:
            with contextlib.suppress(OSError, ValueError):  # what was kept earlier still counts
                _memory.update(_without_numbers(_complete(json.loads(file.read_text("utf-8")))))
        return change(_complete(_memory))


def _read(file):
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _complete({})
    except UnicodeDecodeError:
        text = ""
    try:
        data = _complete(json.loads(text))
        _validate(data)
        return _without_numbers(data)
    except (ValueError, TypeError, KeyError, AttributeError):
        aside = file.with_name(f"{file.stem}.unreadable-{_now().replace(':', '')}{file.suffix}")
        os.replace(file, aside)
        _say(f"{file.name} could not be read; it is kept as {aside.name} and a new one begins")
        return _complete({})


def _complete(data):
    data.setdefault("exercises", {})
    data.setdefault("predictions", {})
    return data


def _validate(data):
    """Raises if a note has lost its shape. Fields that we do not know stay as they are."""
    for entry in data["exercises"].values():
        if not isinstance(entry["attempts"] + entry["hints"], int):
            raise ValueError
        hash((entry["passed"], entry["source"]))
    for note in data["predictions"].values():
        note["value"]


def _without_numbers(data):
    """Notes of older versions, whose keys begin with the lesson's number, under their names."""
    for kind in ("exercises", "predictions"):
        notes = data[kind]
        for old in [key for key in notes if name_of(key) != key]:
            mine, name = notes.pop(old), name_of(old)
            there = notes.setdefault(name, mine)
            if there is not mine and kind == "exercises":
                there["passed"] = min(filter(None, (there["passed"], mine["passed"])), default=None)
                for count in ("attempts", "hints"):
                    there[count] = max(there[count], mine[count])
            elif there is not mine and mine["time"] > there["time"]:
                notes[name] = mine
    return data


def _write(file, data):
    """All or nothing: a reader sees the old file or the new one, never a half."""
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=1, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _say(message):
    """Once per process, beside the lesson's output."""
    if message not in _printed_once:
        _printed_once.add(message)
        print(f"lessons: {message}", file=sys.stderr)
