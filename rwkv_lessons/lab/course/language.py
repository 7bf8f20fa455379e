"""The language in which a lesson speaks: what is printed passes through `say` on its way out.

`lessons start --lang zh` notes the language beside the progress; the environment variable
LESSONS_LANG says another. English needs no look-up.
"""

import os
import textwrap
import unicodedata

from . import progress, translation

VARIABLE = "LESSONS_LANG"
ENGLISH = "en"


def language() -> str:
    """Which language is spoken now; English where the one that was asked for is not there."""
    chosen = os.environ.get(VARIABLE) or progress.language() or ENGLISH
    return chosen if chosen in translation.languages() else ENGLISH


def say(text: str) -> str:
    """`text`, which is English, in the learner's language; as it is where nobody translated it."""
    chosen = language()
    return text if chosen == ENGLISH else translation.texts(chosen).translate(text)


def say_lines(text: str) -> str:
    """Several lines, each said by itself."""
    return "\n".join(map(say, text.split("\n")))


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns; a Chinese character takes two, and may end any line."""
    if text.isascii() or not any(map(_wide, text)):
        return textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )
    lines, line = [], indent
    for piece in _pieces(text):
        if columns(line + piece) > width and line.strip() and piece not in CLOSING:
            lines.append(line.rstrip())
            line, piece = indent, piece.lstrip()
        line += piece
    return [*lines, line.rstrip()]


CLOSING = "，。、；：？！）】》”’"  # no line begins with one of these


def columns(text: str) -> int:
    return len(text) + sum(map(_wide, text))


def _wide(character):
    return unicodedata.east_asian_width(character) in "WF"


def _pieces(text):
    """Each wide character by itself, other words whole, with the space before them."""
    piece = ""
    for character in text:
        if piece and (_wide(character) or _wide(piece[-1]) or character == " "):
            yield piece
            piece = ""
        piece += character
    if piece:
        yield piece
