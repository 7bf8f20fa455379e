"""Which lines of source a page shows: the functions in which something was counted."""

import ast
import linecache
from pathlib import Path

from ..faults import Place

LONGEST = 200  # characters of a line


class Source:
    """The files of a trace, and a key for each line: "L14", in a second file "F1L14".

    Attributes:
        lines: [(key, number, text)], in the order of the files; None stands between functions.
        left: how many more there are than `most`. keys: of the lines.
    """

    def __init__(self, trace, counted, most):
        """`counted`: (file, line)s that something was counted at. most: lines to show."""
        places = [x for trouble in [*trace.faults, *trace.races] for x in places_of(trouble)]
        counted = [*counted, *((place.file, place.line) for place in places)]
        self.files = list(dict.fromkeys(file for file, _ in counted))
        self.lines = []
        for file in self.files:
            for first, last in _functions(file, {n for f, n in counted if f == file}):
                if self.lines:
                    self.lines.append(None)
                for n in range(first, last + 1):
                    text = _short(linecache.getline(file, n).rstrip("\n"))
                    self.lines.append((self.key(file, n), n, text))
        self.omitted = max(0, len(self.lines) - most)
        self.lines = self.lines[:most]
        self.keys = {line[0] for line in self.lines if line}

    def key(self, file, line):
        """The key of a line of a file that something was counted in."""
        number = self.files.index(file)
        return f"F{number}L{line}" if number else f"L{line}"

    def key_of(self, place):
        """The key of a `Place`, or None where its line is not shown."""
        if place is None or place.file not in self.files:
            return None
        key = self.key(place.file, place.line)
        return key if key in self.keys else None

    def name(self):
        """The name of the first file, with no folder; "" where there is none."""
        return Path(self.files[0]).name if self.files else ""


def places_of(trouble):
    """Every `Place` that a race or a fault has."""
    return [x for x in vars(trouble).values() if isinstance(x, Place)]


def _short(text):
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _functions(file, lines):
    """[(first, last)] of the functions around these lines, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a cell with a magic
        return [(max(1, min(lines) - 2), max(lines) + 2)]
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    spans = [
        (min([node.lineno, *(x.lineno for x in node.decorator_list)]), node.end_lineno)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]
    innermost = {max([s for s in spans if s[0] <= n <= s[1]], default=(n, n)) for n in lines}
    return sorted(
        span
        for span in innermost
        if not any(a <= span[0] and span[1] <= b and (a, b) != span for a, b in innermost)
    )
