"""Lessons and pages in another language: made from the English ones, so that code stays the same.

A translated notebook is never stored. A cell of text whose translation is missing or old stands in
English, below a line that says so.
"""

import html
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

from warplens.pictures.steps import as_data
from warplens.pictures.style import in_one_line

from ..course import exercises, translation
from ..course.check import INDENT, detail_lines
from ..course.hints import HINTS
from ..course.language import wrapped
from ..course.terminal import WIDTH
from . import signposts

EFFORT = "{effort}"  # what stands in a translation for minutes and difficulty, which are derived
COLOUR = re.compile(r"(\x1b\[\d+m)")
# A row of a check: mark and kind, text.
ROW = re.compile(rf"(  \x1b\[\d+m.\x1b\[0m .{{{len(INDENT) - 5}}} )(.+)")
DETAIL = re.compile(rf"{INDENT}( *[^\s\x1b][^\x1b]*)")  # below a row, without colours
TEXT = re.compile(r"( {4}| {8})(\S.*)")  # of what a check says after a pass
# Cells whose outputs are translated; a lesson's own print stays as its code has it.
SPEAKING = re.compile(r"\b(check|evaluate|hint|predict|outcome|setup|break_it)\(")
# The data of a picture with sliders.
SLIDERS = re.compile(r'(class="movable".*?<script type="application/json">)(.*?)</script>', re.S)
OLD = "This part has changed in English since it was translated. Here is the English."
MISSING = "This part is not translated yet. Here is the English."


def lessons(language: str) -> list[Path]:
    """The notebooks that can be had in a language: those with a file of translations."""
    files = (translation.FOLDER / language).glob("[0-9]*.md")
    return sorted(exercises.NOTEBOOKS / f"{file.stem}.ipynb" for file in files)


def notebook(path: Path, language: str):
    """The lesson at `path` in a language; its code cells are those of the English one."""
    import nbformat

    english, texts = nbformat.read(path, 4), translation.texts(language)
    copied = deepcopy(english)
    for cell in copied.cells:
        if cell.cell_type == "code":
            for output in cell.outputs:
                _describe(output, texts)
                if SPEAKING.search(cell.source):
                    _say_in(output, texts)
            continue
        efforts = signposts.EFFORT.findall(cell.source)
        source, guide = own_text(cell.source)
        text = _text(texts, path.stem, cell.id, source)
        for effort in efforts:
            minutes, difficulty = re.match(r"\*(\d+) minutes · (.+)\*", effort).groups()
            effort = f"*{texts.translate(f'{minutes} minutes')} · {difficulty}*"
            text = text.replace(EFFORT, effort, 1)
        cell.source = f"{text}\n\n{_guided(guide, texts)}" if guide else text
    return copied


def own_text(source: str) -> tuple[str, str]:
    """What a writer wrote of a cell, and the line to the next lesson; both derived parts go out."""
    lines, guide = source.rstrip().splitlines(), ""
    if lines and signposts.NEXT.match(lines[-1]):
        guide = lines.pop()
    return signposts.EFFORT.sub(EFFORT, "\n".join(lines).rstrip()), guide


def _text(texts, file, label, source):
    """The translation; else the English, below a line that says why."""
    if (text := texts[source]) is not None:
        return text
    why = OLD if (file, label) in texts.by_label else MISSING
    return f"*{texts.translate(why)}*\n\n{source}"


def _guided(line, texts):
    """The line to the neighbours, with their titles as far as they are translated."""
    for english in ("Next: ", "Before: "):
        line = line.replace(english, f"{texts.translate(english.strip())}")

    def title(match):
        file = exercises.NOTEBOOKS / match[2]
        return f"[{_title(file, texts)}]({match[2]})" if file.exists() else match[0]

    return re.sub(r"\[([^]]+)\]\(([^)]+\.ipynb)\)", title, line)


def _title(path, texts):
    import nbformat

    source, _ = own_text(nbformat.read(path, 4).cells[0].source)
    match = signposts.TITLE.search(texts[source] or source)
    return f"{path.stem[:2]} · {match[2]}"


def _describe(output, texts):
    """Translates what a screen reader says of a picture, and the sliders of one that moves."""
    data = output.get("data", {})
    if "image/png" in data:
        lines = map(texts.translate, data.get("text/plain", "").split("\n"))
        output.metadata.setdefault("image/png", {})["alt"] = in_one_line("\n".join(lines))
    if match := SLIDERS.search(data.get("text/html", "")):
        moved, page = json.loads(match[2]), data["text/html"]
        label = f"picture with sliders: {', '.join(knob['name'] for knob in moved['knobs'])}"
        spoken = {label: texts.translate(label)}
        for frame in moved["frames"]:
            spoken[frame["said"]] = frame["said"] = texts.translate(frame["said"])
        for knob in moved["knobs"]:
            knob["name"] = texts.translate(knob["name"])
        page = page.replace(match[2], as_data(moved))
        for english, words in spoken.items():
            page = page.replace(html.escape(english), html.escape(words))
        data["text/html"] = page


def _say_in(output, texts):
    """Translates what a cell showed, as it would be printed.

    That is line by line, but texts of several lines are wrapped again in their translation.
    """

    if output.output_type != "stream":
        return
    lines, output_lines = output.text.split("\n"), []
    while lines:
        if part := ROW.fullmatch(lines[0]):
            begin, indent = part[1], INDENT
            wrap = partial(wrapped, width=WIDTH - len(INDENT))
        elif part := DETAIL.fullmatch(lines[0]):
            begin = indent = INDENT
            wrap = detail_lines
        elif part := TEXT.fullmatch(lines[0]):
            begin = indent = part[1]
            wrap = partial(wrapped, width=WIDTH - 4 - len(indent))
        else:
            output_lines.append(_line(lines.pop(0), texts))
            continue
        text, count = _text_of(part[part.lastindex], lines, indent, wrap, texts)
        if text:
            first, *more = wrap(text)
            output_lines += [begin + first, *(indent + line for line in more)]
        else:
            output_lines.append(lines[0])
        del lines[:count]
    output.text = "\n".join(output_lines)


def _text_of(first, lines, indent, wrap, texts):
    """The translation of a text that was wrapped, and how many lines it has taken.

    That are as many as wrapping makes of them, which may also be true of a line too many: then the
    longest text that is translated is meant. Without any, it is None, for one line.
    """
    joined, pieces, ends = first, [first], [first]
    for line in lines[1:]:
        if not line.startswith(indent):
            break
        pieces = [*pieces, line.removeprefix(indent)]
        joined = f"{joined} {pieces[-1].lstrip()}"
        ends.append(joined if wrap(joined) == pieces else None)
    for count, text in reversed(list(enumerate(ends, 1))):
        if text is not None and (translated := texts.translate(text)) != text:
            return translated, count
    return None, 1


def _line(line, texts):
    parts = COLOUR.split(line)
    parts[::2] = map(texts.translate, parts[::2])
    return "".join(parts)


def page(path: Path, language: str) -> str:
    """A whole page, such as README.md, in a language; sections that are old stand in English."""
    texts, stem = translation.texts(language), translation.pages(language)[path].stem
    parts = []
    for label, source in translation.sections(path.read_text(encoding="utf-8")).items():
        text = texts[source]
        if text is None:  # below the heading
            heading, _, body = source.partition("\n")
            text = f"{heading}\n\n{_text(texts, stem, label, body.strip())}"
        parts.append(text)
    return "\n\n".join(parts) + "\n"


# What there is to translate, and how far it is.


def sources(language: str) -> dict[Path, dict[str, str]]:
    """{file of translations: {label: English}} of every lesson and page begun in a language."""
    folder = translation.FOLDER / language
    files = {folder / f"{p.stem}.md": dict(_lesson(p)) for p in lessons(language)}
    files[folder / "hints.md"] = {f"hint {name}": text for name, text in HINTS.items()}
    for english, target in translation.pages(language).items():
        files[target] = translation.sections(english.read_text(encoding="utf-8"))
    return files


def _lesson(path) -> Iterator[tuple[str, str]]:
    import nbformat

    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            yield cell.id, own_text(cell.source)[0]
    for name, exercise in exercises.solutions(path.stem).EXERCISES.items():
        yield from ((f"{name}.hint {n}", text) for n, text in enumerate(exercise.hints, 1))
        yield from ((f"{name}.symptom {case}", text) for case, text in exercise.symptoms.items())
        if afterwards := exercise.afterwards:
            yield from (
                (f"{name}.why {n}", text) for n, text in enumerate(afterwards.why.values(), 1)
            )
            for n, (way, cost) in enumerate(afterwards.instead.items(), 1):
                yield from ((f"{name}.way {n}", way), (f"{name}.cost {n}", cost))
            yield f"{name}.stretch", afterwards.stretch


def state(language: str) -> dict[str, list[str]]:
    """What is left to do: `old`, `missing` and `idle` (of nothing any more) translations."""
    pending, texts = {"old": [], "missing": [], "idle": []}, translation.texts(language)
    for file, english in sources(language).items():
        for label, text in english.items():
            if texts[text] is None:  # the same text may have been translated under another label
                old = (file.stem, label) in texts.by_label
                pending["old" if old else "missing"].append(f"{file.name}: {label}")
        there = [label for stem, label in texts.by_label if stem == file.stem]
        pending["idle"] += [f"{file.name}: {label}" for label in there if label not in english]
    return pending


def stamp(language: str) -> int:
    """Gives blocks without a fingerprint that of their English; counts them.

    Whoever has brought an old translation up to date removes its fingerprint, and runs this.
    """
    count = 0
    for file, english in sources(language).items():
        if not file.exists():
            continue

        def marked(match, english=english):
            nonlocal count
            label, source = match.groups()
            if source or label not in english:
                return match[0]
            count += 1
            return f"<!-- of: {label} {translation.source_mark(english[label])} -->\n"

        text = file.read_text(encoding="utf-8")
        if (new := translation.MARK.sub(marked, text)) != text:
            file.write_text(new, encoding="utf-8")
    translation.texts.cache_clear()
    return count
