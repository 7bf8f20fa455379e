"""Texts in another language, found by a fingerprint of their English source.

`translations/<language>/` has a file for each lesson, one for the hints that lessons share, and
`messages.json`. A file is Markdown in blocks; each begins with a comment that names what it
translates (a cell's id, `kernel.hint 1`, a heading) and the fingerprint that the English had:

    <!-- of: check_text 1f0c2a9b7d3e -->

A whole page, such as README.zh.md, is made of such blocks too. Where the English has changed since,
its fingerprint finds nothing, and the label tells that the translation is old: a reader gets the
English. `messages.json` has {English: translation} of what is printed, with `{}` for what varies.
"""

import functools
import hashlib
import json
import re
from pathlib import Path

from . import exercises

FOLDER = exercises.ROOT / "translations"
MARK = re.compile(r"^<!-- of: (.+?)(?: ([0-9a-f]{12}))? -->\n", re.M)
GENERATED = re.compile(r"(<!-- BEGIN \S+ -->\n).*?(<!-- END \S+ -->)", re.S)
FENCE = re.compile(r"^(```|~~~)", re.M)


def languages() -> list[str]:
    """Those that the lessons can be read in besides English."""
    return sorted(path.name for path in FOLDER.glob("*") if path.is_dir())


def source_mark(text: str) -> str:
    """Of an English text; what is generated in it does not count, nor does white space around."""
    text = GENERATED.sub(r"\1\2", text).strip()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def blocks(text: str) -> list[tuple[str, str | None, str]]:
    """(label, fingerprint of its English or None, translation) of each block of a file."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [(m[1], m[2], text[m.end() : end].strip()) for m, end in zip(marks, ends, strict=True)]


def sections(page: str) -> dict[str, str]:
    """{heading: its section} of a page of Markdown, headings of all levels on their own."""
    parts, fenced = [], False
    for line in page.splitlines():
        fenced ^= bool(FENCE.match(line))
        if not fenced and re.match(r"#{1,4} ", line):
            parts.append([line.lstrip("# "), []])
        if parts:
            parts[-1][1].append(line)
    return {heading: "\n".join(lines).strip() for heading, lines in parts}


class Texts:
    """All translations into one language: `texts[English]`, or None.

    Attributes:
        by_label: {(file, label): (fingerprint, translation)}, also of those that are old.
        messages: {English: translation}, with `{}` where something varies.
    """

    def __init__(self, folder: Path, pages: tuple[Path, ...] = ()):
        self.by_label, self.by_source = {}, {}
        for file in (*sorted(folder.glob("*.md")), *pages):
            for label, source, text in blocks(file.read_text(encoding="utf-8")):
                self.by_label[file.stem, label] = source, text
                if source:
                    self.by_source[source] = text
        messages = folder / "messages.json"
        self.messages = json.loads(messages.read_text("utf-8")) if messages.exists() else {}
        self._patterns = [(_pattern(e), t) for e, t in self.messages.items() if "{}" in e]

    def __getitem__(self, english: str) -> str | None:
        return self.by_source.get(source_mark(english))

    def translate(self, line: str) -> str:
        """What is printed, translated as far as there is a translation."""
        text = line.strip()
        translated = self.messages.get(text) or self[text] or self._filled(text)
        if not translated and " · " in text:
            translated = " · ".join(map(self.translate, text.split(" · ")))
        translated = translated or self._pair(text)
        return line.replace(text, translated, 1) if translated else line

    def _pair(self, text):
        """Two texts with a colon between them, such as another way and what it costs."""
        for colon in re.finditer(": ", text):
            first, second = self[text[: colon.start()]], self[text[colon.end() :]]
            if first and second:
                return f"{first}：{second}"
        return None

    def table(self, text: str) -> str:
        """A table of Markdown with its cells translated, and the lines around it."""
        lines = [line.split("|") for line in text.split("\n")]
        return "\n".join("|".join(map(self.translate, cells)) for cells in lines)

    def _filled(self, text):
        """By the first message whose fixed words are those of `text`; its parts in the same way."""
        for pattern, translation in self._patterns:
            if match := pattern.fullmatch(text):
                return _fill(translation, [self._listed(part) for part in match.groups()])
        return None

    def _listed(self, text):
        parts = text.split(", ")
        translated = [self.translate(part) for part in parts]
        all_differ = all(a != b for a, b in zip(parts, translated, strict=True))
        return "、".join(translated) if all_differ else self.translate(text)


def _pattern(message):
    """A number or a name that a message begins with has no colon in it; a count has digits."""
    begin, *rest = map(re.escape, message.split("{}"))
    first = "([^:]+?)" if not begin and rest[0].startswith(r"\ ") else "(.+?)"
    if re.fullmatch(r"\{\} \w+", message):  # "{} registers"; not all that ends in the word
        first = r"([\d,.]+)"
    return re.compile(begin + first + "(.+?)".join(rest), re.S)


def _fill(translation, parts):
    """Puts parts in where `{}` stands, in turn, or `{2}` for the second of them."""
    unused = iter(parts)
    return re.sub(
        r"\{(\d*)\}", lambda m: parts[int(m[1]) - 1] if m[1] else next(unused), translation
    )


@functools.cache
def texts(language: str) -> Texts:
    """All that is translated into `language`, read once.

    Raises:
        ValueError: there is no such language.
    """
    if language not in languages():
        raise ValueError(f"no language {language!r}; there are en, {', '.join(languages())}")
    return Texts(FOLDER / language, tuple(pages(language).values()))


def pages(language: str) -> dict[Path, Path]:
    """{page: its translation} of whole pages, both from the root of the repository."""
    root = exercises.ROOT
    translations = {root / "README.md": root / f"README.{language}.md"}
    for page in sorted((root / "docs" / language).glob("*.md")):
        translations[root / "docs" / page.name] = page
    return {english: page for english, page in translations.items() if page.exists()}
