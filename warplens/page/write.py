"""The whole page of a trace, and the short form of it that a notebook shows."""

import importlib
from pathlib import Path

from ..compiled.assembly import Assembly
from ..pictures.steps import DRAWING, as_data
from ..wording import many
from . import pictures
from .markup import Markup, element, joined, table
from .source import Source
from .troubles import troubles

OF_PAGE = "/* The page by itself. */"  # in page.css
HERE = Path(__file__).parent
MOST_LINES = 1000  # of source
MOST_ROWS = 400  # of the table
MOST_INSTRUCTIONS = 3000
# Bytes. With what has a number above, a page stays below 1.5 MB.
MOST_STEPS, MOST_MAPS = 400_000, 200_000
NO_CODE = (
    "No machine code was given. warplens trace --html brings it; in Python, "
    "write_html(path, code=machine_code(kernel, …)) does."
)


class Parts:
    """The pieces of a page of `seen`, each as markup."""

    def __init__(self, trace, links=True):
        self.trace, self.links = trace, links
        kind = (
            "gluon"
            if hasattr(trace, "flights")
            else "triton"
            if hasattr(trace, "dots")
            else "numba"
        )
        self.way = importlib.import_module(f".of_{kind}", __package__)
        self.lines = self.way.lines(trace)
        self.source = Source(trace, self.lines, MOST_LINES)

    def key_of(self, place):
        return self.source.key_of(place)

    def head(self):
        facts = [
            element("div", element("dt", name), element("dd", f"{value:,}"))
            for name, value in self.way.facts(self.trace)
        ]
        file = self.source.name()
        launched = self.way.launch(self.trace) + (f", of {file}" if file else "")
        return joined(
            element("h1", element("code", self.trace.kernel)),
            element("p", launched, "."),
            element("dl", *facts, class_="facts"),
        )

    def limits(self):
        counted = element("p", element("b", "Counted: "), self.way.COUNTED)
        missing = element("p", element("b", "Not modelled: "), self.way.NOT_MODELLED)
        return element("details", element("summary", "What is counted"), counted, missing)

    def troubles(self):
        return troubles(self.trace, self.source, self.links)

    def code(self):
        """The source, with the counts of each line, and how it compares with the others."""
        if not self.source.lines:
            return element("p", "No line of the kernel accesses memory.")
        numbers = {self.source.key(*where): n for where, n in self.lines.items()}
        used = [i for i in range(len(self.way.HEADS)) if any(n[i] for n in numbers.values())]
        hottest = max((self.way.heat(n) for n in numbers.values()), default=0)
        heads = ["line", "share", "source", *(self.way.HEADS[i] for i in used)]
        rows, keys = [], []
        for line in self.source.lines:
            keys.append(line and line[0])
            rows.append(["", "", element("code", "⋮"), *[""] * len(used)] if line is None else
                        self._line(*line, numbers.get(line[0]), used, hottest))  # fmt: skip
        says = f"The accesses of each line; the bars compare the {self.way.HEAT} of the lines."
        if self.source.omitted:
            says += f" {many(self.source.omitted, 'more line')} would make this page too large."

        def row(n):
            return {"id": keys[n], "data_line": keys[n]} if self.links and keys[n] else {}

        whole = table("source, with counts by line", heads, rows, row)
        return joined(element("p", says), element("div", whole, class_="scroll source"))

    def _line(self, key, number, text, numbers, used, hottest):
        heading = number
        if self.links:
            named = f"line {number}: show its {self.way.UNIT}s"
            heading = element("button", number, type="button", aria_label=named, tabindex="-1",
                              aria_pressed="false")  # fmt: skip
        share = self.way.heat(numbers) / hottest if numbers and hottest else 0
        bar = element("span", style=f"width:{100 * share:.0f}%", class_="bar") if share else ""
        counts = [(numbers[i] if numbers[i] else "") if numbers else "" for i in used]
        return [heading, bar, element("code", text), *counts]

    def table(self):
        heads, body = self.way.table(self.trace)
        rows = [[place.line if place else "–", *cells] for place, cells in body[:MOST_ROWS]]
        omitted = len(body) - len(rows)
        more = f"{many(omitted, 'more row')}: print the trace." if omitted else None

        def row(n):
            return {"data_line": self.key_of(body[n][0])} if self.links else {}

        whole = table("counts by line and array", ["line", *heads], rows, row)
        return element(
            "details",
            element("summary", "Counts by line and array"),
            element("div", whole, class_="scroll counts"),
            element("p", more) if more else None,
        )

    def maps(self):
        figures, size, omitted = [], 0, 0
        for figure in self.way.maps(self.trace):
            size += len(figure)
            figures, omitted = (
                (figures + [figure], omitted) if size < MOST_MAPS else (figures, omitted + 1)
            )
        if not figures and not omitted:
            return None
        more = f"{many(omitted, 'more map')} would make this page too large." if omitted else None
        how = "The last dimension runs across, the others down; a cell is one element or several."
        return self._section(
            "Memory maps",
            element("p", how),
            element("div", *figures, class_="maps"),
            element("p", more) if more else None,
        )

    def timeline(self):
        if not hasattr(self.trace, "flights"):
            return None
        drawn = pictures.timeline(self.trace, self.key_of if self.links else lambda place: None)
        if drawn is None:
            return None
        keys = [
            element("span", element("i", class_=f"swatch {kind}"), f" {name}")
            for kind, name in TIMELINE.items()
        ]
        program, steps = self.way.shown(self.trace), self.way.steps(self.trace)[0]
        text = "\n".join(f"{step['step']}. {step['said']}" for _, step in steps)
        return self._section(
            "Timeline",
            element("p", pictures.caption(self.trace, program), "."),
            element("div", drawn, class_="scroll", tabindex="0", role="region",
                    aria_label="timeline"),
            element("p", *keys, class_="legend"),
            element("details", element("summary", "The same as text"),
                    element("pre", text)),
        )  # fmt: skip

    def banks(self, placed_steps):
        worst = getattr(self.way, "worst_banks", lambda *_: None)(self.trace, placed_steps)
        if worst is None:
            return None
        says = f"The request with the most conflicts, {worst['who']}: {worst['said']}."
        if any(extra for _, extra in worst["passes"]):
            says += " Orange wavefronts are conflicts."
        return self._section(
            "Banks", element("p", says), element("div", pictures.banks(worst), class_="scroll")
        )

    def _section(self, title, *inside):
        if self.links:
            return element("section", element("h2", title), *inside)
        return element("details", element("summary", title), *inside)


TIMELINE = {
    "step compute": "computes", "step read": "reads a tile", "step write": "writes a tile",
    "step wait": "waits", "step start": "starts a copy or product", "step": "another step",
    "copyin": "copy in, in flight", "product": "product, in flight",
    "copyout": "copy out, in flight",
}  # fmt: skip


def page(trace, code=None):
    """A whole HTML document, with all that it needs inside.

    Args:
        trace: a `Trace`, `TritonTrace` or `GluonTrace`.
        code: what `machine_code` returned, or a sentence that says why there is none.
    """
    parts = Parts(trace)
    placed_steps, in_order, totals = parts.way.steps(trace)
    data, omitted = _data(parts, placed_steps, in_order, totals)
    main = element(
        "main",
        parts.head(),
        parts.limits(),
        parts.troubles(),
        element(
            "div",
            element("section", element("h2", "Source"), parts.code(), parts.table(), id="source"),
            element("div", _stepper(parts, omitted), _machine_code(parts, code), class_="beside"),
            class_="columns",
        ),
        parts.timeline(),
        parts.banks(placed_steps),
        parts.maps(),
        class_="warplens page",
    )
    script = _read(DRAWING) + _read(HERE / "page.js")
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{trace.kernel}, traced"),
        element("style", Markup(_style())),
    )
    body = element(
        "body",
        main,
        element("script", Markup(as_data(data)), type="application/json", id="data"),
        element("script", Markup(f"{{{script}}}")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def compact(trace):
    """The same without a script, to stand in another page: what a notebook shows of a trace."""
    parts = Parts(trace, links=False)
    placed_steps = parts.way.steps(trace)[0] if hasattr(parts.way, "worst_banks") else []
    return element(
        "div",
        element("style", Markup(_style().partition(OF_PAGE)[0])),
        parts.head(),
        parts.troubles(),
        element("details", element("summary", "Source"), parts.code(), open=True),
        parts.table(),
        parts.timeline(),
        parts.banks(placed_steps),
        parts.maps(),
        parts.limits(),
        class_="warplens",
    )


def _data(parts, placed_steps, in_order, totals):
    """(What the script works with, how many steps were left out for their size)."""
    steps, size = [], 0
    for where, step in placed_steps:
        step = step | {"line": parts.source.key(*where)}
        step.pop("source", None)
        size += len(as_data(step))
        if size > MOST_STEPS:
            break
        steps.append(step)
    totals = {parts.source.key(*where): n for where, n in totals.items()}
    in_order = [n for n in in_order if n < len(steps)]
    names = {op: f"var(--{op})" for op in ("load", "store", "atomic", "extra")}
    names |= {"faint": "var(--faint)", "ink": "var(--ink)", "paper": "var(--paper)"}
    data = {"steps": steps, "inOrder": in_order, "totals": totals, "unit": parts.way.UNIT}
    data["colours"] = names
    return data, len(placed_steps) - len(steps)


def _stepper(parts, omitted):
    unit = parts.way.UNIT

    def button(name, text, says):
        return element("button", text, type="button", data_move=name, aria_label=says)

    choices = {"line": "the selected line's", "order": parts.way.IN_ORDER}
    options = [element("option", text, value=value) for value, text in choices.items()]
    more = f" Without the last {omitted:,}, which would make it too large." if omitted else ""
    return element(
        "section",
        element("h2", f"{unit.capitalize()}s, one at a time"),
        element(
            "p",
            button("first", "⇤", "first"),
            button("back", "←", f"previous {unit}"),
            button("next", "→", f"next {unit}"),
            button("last", "⇥", "last"),
            " ",
            element("label", "Show ", element("select", *options, id="which")),
            " ",
            element("span", id="position"),
        ),
        element("p", id="said", aria_live="polite"),
        element(
            "div",
            element("svg", aria_hidden="true", id="drawing", viewBox="0 0 704 120"),
            class_="drawing",
        ),
        element(
            "p",
            "Select a line of the source, by click or with ↑ and ↓, and step with ← and →. ",
            f"{parts.way.SAMPLE}{more}",
            class_="small",
        ),
        element("noscript", element("p", "Stepping needs JavaScript; all else works without it.")),
        id="requests",
        tabindex="0",
        aria_label=f"{unit}s, one at a time",
    )


def _machine_code(parts, code):
    title = element("h2", "Machine code")
    if not isinstance(code, Assembly):
        return element("section", title, element("p", code or NO_CODE), id="machine")
    listing, source = code.listing(), code.source
    lines = []
    for line, text in listing[:MOST_INSTRUCTIONS]:
        key = parts.source.key(source, line) if line and source in parts.source.files else None
        key = key if key in parts.source.keys else None
        number = f"{line or '':>5}  "
        lines.append(element("span", number, text, "\n", data_line=key))
    omitted = len(listing) - len(lines)
    more = (
        f"{many(omitted, 'more instruction')} would make this page too large." if omitted else None
    )
    return element(
        "section",
        title,
        element("p", "Of the whole kernel; the selected line's instructions are marked.",
                class_="small"),
        element("pre", *lines, class_="listing", tabindex="0", role="region",
                aria_label="machine code, with source lines"),
        element("p", more) if more else None,
        element("details", element("summary", f"{code.arch}: {code.registers} registers, "
                f"{code.spill_stores + code.spill_loads} bytes of spills"),
                element("pre", code.summary())),
        id="machine",
    )  # fmt: skip


def _style():
    return _read(HERE / "page.css")


def _read(file):
    return file.read_text(encoding="utf-8")
