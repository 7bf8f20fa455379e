"""What was wrong with a program's kernels, each pair of lines once, and reports of it."""

import json
import os
import sys
from dataclasses import dataclass, field

from ..cuda import dialects
from ..wording import many

KINDS = ("text", "html", "json", "github")


@dataclass
class Finding:
    """A race or a fault, at one line or one pair of lines."""

    kind: str  # "Race", or the name of the fault's class
    kernel: str
    file: str
    line: int
    text: str
    lines: list  # of all places, (file, line)
    launches: int = 1  # in how many launches it was met
    raised: bool = False  # whether the launch ended with it, as an exception
    test: str | None = None  # the test that ran

    def __str__(self):
        times = f" (in {self.launches} launches)" if self.launches > 1 else ""
        kind = "" if self.kind == "Race" else f"{self.kind}: "
        return f"{os.path.relpath(self.file)}:{self.line}: {self.kernel}{times}: {kind}{self.text}"


@dataclass
class Findings:
    """Of the process."""

    by_key: dict = field(default_factory=dict)
    launches: int = 0
    cut: set = field(default_factory=set)  # kernels of which a launch was too long to keep whole
    refused: set = field(default_factory=set)  # kernels that use what is not simulated
    test: str | None = None

    def add(self, trouble, function, raised=False):
        places = [getattr(trouble, name, None) for name in ("place", "other_place")]
        lines = [(os.path.abspath(place.file), place.line) for place in places if place]
        code = function.__code__
        file, line = lines[0] if lines else (code.co_filename, code.co_firstlineno)
        kind = type(trouble).__name__
        key = kind, function.__name__, getattr(trouble, "array", None), *lines
        if key in self.by_key:
            self.by_key[key].launches += 1
            return
        fields = [file, line, str(trouble), lines, 1, raised]
        self.by_key[key] = Finding(kind, function.__name__, *fields, test=self.test)

    def __iter__(self):
        return iter(self.by_key.values())

    def __len__(self):
        return len(self.by_key)

    def summary(self):
        """One line."""
        if not self.launches:
            return f"warplens: no kernel was launched{_hint()}"
        verdict = many(len(self), "finding") if self.by_key else "no race and no fault"
        text = f"warplens: {verdict} in {many(self.launches, 'launch', 'launches')}"
        if self.refused:
            text += f"; not simulated, so not looked at: {', '.join(sorted(self.refused))}"
        if self.cut:
            names = ", ".join(sorted(self.cut))
            text += (
                f"; launches too long to be kept whole, so that some races may be missed: {names}"
            )
        return text

    def as_json(self):
        findings = [vars(x) for x in self]
        whole = {"launches": self.launches, "findings": findings, "not simulated": [*self.refused]}
        return json.dumps(whole, indent=1) + "\n"

    def merge(self, other):
        """Adds what another process found, as `as_json` says it."""
        if other:
            self.launches += other["launches"]
            self.refused.update(other["not simulated"])
            for fields in other["findings"]:
                finding = Finding(**fields)
                key = finding.kind, finding.kernel, finding.text
                self.by_key.setdefault(key, finding)


def _hint():
    """What else can be done with a program that has launched nothing here."""
    if "triton" in sys.modules and not dialects.imported():
        return "; for a kernel of Triton or Gluon: warplens trace FILE.py:KERNEL"
    return ""


FOUND = Findings()


def report(findings, kind="text", to=None):
    """Writes the findings; `html` and `json` as a file, whose path it prints.

    Args:
        findings: `Findings`.
        kind: of `KINDS`.
        to: the stream for text; standard error by default.
    """
    to = to or sys.stderr
    if kind == "github":
        for finding in findings:
            print(annotation(finding), file=sys.stdout, flush=True)
    elif kind != "text":
        try:
            print(f"warplens: written: {write(findings, kind)}", file=to)
        except OSError as problem:  # what was found is printed below
            print(f"warplens: the {kind} report is not written: {problem}", file=to)
    for finding in findings:
        print(f"\n{finding}", file=to)
    print(f"\n{findings.summary()}", file=to)


def write(findings, kind):
    """Writes a file, html or json, and returns its path."""
    path = f"warplens-report.{kind}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(findings.as_json() if kind == "json" else as_html(findings))
    return path


def annotation(finding):
    """A line that GitHub's Actions show at the place in a pull request."""
    file = os.path.relpath(finding.file).replace(os.sep, "/")
    text = finding.text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = f"{finding.kind} in {finding.kernel}"
    return f"::error file={_value(file)},line={finding.line},title={_value(title)}::{text}"


def _value(text):
    for char, code in (("%", "%25"), (":", "%3A"), (",", "%2C")):
        text = text.replace(char, code)
    return text


def as_html(findings):
    """One page: every finding with the lines of its source."""
    from ..page import write
    from ..page.markup import Markup, element, joined

    items = [
        element(
            "section",
            element("h2", f"{x.kind} in {x.kernel}"),
            element("p", element("span", str(x), class_="pre")),
            *(_source(file, line) for file, line in x.lines),
            class_="troubles",
        )
        for x in findings
    ]
    head = joined(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        element("title", "warplens"),
        element("style", Markup(write._style())),
    )
    body = element("main", element("h1", findings.summary()), *items, class_="warplens page")
    page = element("html", element("head", head), element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _source(file, line, around=3):
    """The lines around one, which is marked."""
    import linecache

    from ..page.markup import element

    shown = []
    for n in range(max(1, line - around), line + around + 1):
        text = linecache.getline(file, n).rstrip("\n")
        code = f"{n:>5} {text}\n"
        shown.append(element("mark", code) if n == line else code)
    return element("pre", *shown, aria_label=f"{os.path.basename(file)}, line {line}")
