"""What a learner has done: one small JSON file, safe against crashes and two notebooks at once.

It lies in `.rwkv_lessons/progress.json`, which git ignores. The environment variable
RWKV_LESSONS_PROGRESS names another file, or `off`: then it is kept in memory only, as in tests.
"""

import contextlib
import datetime
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

VARIABLE = "RWKV_LESSONS_PROGRESS"
DEFAULT = Path(__file__).resolve().parents[3] / ".rwkv_lessons" / "progress.json"
TIERS = 3
PATIENCE = 10  # seconds to wait for another notebook; a write takes milliseconds

_memory: dict = {}  # what is kept where there is no file
_told: set[str] = set()


def path() -> Path | None:
    """The file, or None where progress is kept in memory only."""
    chosen = os.environ.get(VARIABLE, "")
    return None if chosen == "off" else Path(chosen or DEFAULT)


def load() -> dict:
    """Everything noted so far.

    Returns:
        `exercises`: id → `attempts`, `hints`, `passed` (time of the first pass, ISO, or None) and
        `source` (hash of the last attempt). `predictions`: id → `value` and `time`.
    """
    return _change(lambda data: data, write=False)


def note_check(id: str, passed: bool, source: str) -> None:
    """Counts an attempt. The same source checked again is no new attempt."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]

    def change(data):
        entry = _exercise(data, id)
        entry["attempts"] += entry["source"] != digest
        entry["source"] = digest
        if passed and not entry["passed"]:
            entry["passed"] = _now()

    _change(change)


def note_hint(id: str) -> int:
    """Counts a hint and returns its tier: 1, 2, 3 and then 3 again."""

    def change(data):
        entry = _exercise(data, id)
        entry["hints"] = min(entry["hints"] + 1, TIERS)
        return entry["hints"]

    return _change(change)


def note_prediction(id: str, value: float) -> None:
    """Keeps the number predicted for `id` instead of an earlier one."""
    json.dumps(value)  # raises TypeError before anything is touched
    note = {"value": value, "time": _now()}
    _change(lambda data: data["predictions"].update({id: note}))


def prediction(id: str) -> float | None:
    """The number predicted for `id`, or None."""
    return load()["predictions"].get(id, {}).get("value")


def _exercise(data, id):
    new = {"attempts": 0, "hints": 0, "passed": None, "source": None}
    return data["exercises"].setdefault(id, new)


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
        _say(f"progress is not kept: {error}")
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
        return data
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
    if message not in _told:
        _told.add(message)
        print(f"lessons: {message}", file=sys.stderr)
