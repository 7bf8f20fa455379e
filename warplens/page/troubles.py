"""Races and faults, with a link to every line that they name."""

import re

from ..wording import many
from .markup import Markup, element, escaped, joined
from .source import places_of

LINE = re.compile(r"\bline (\d+)")
MOST = 50


def troubles(trace, source, links=True):
    """A <section>: what is wrong with the kernel, or that nothing is."""
    problems = [*trace.faults, *trace.races]
    reach = f" {trace.reach()}." if hasattr(trace, "reach") else ""
    if not problems:
        return element("p", "No race and no fault was found.", reach, class_="fine")
    head = many(len(trace.faults), "fault") if trace.faults else ""
    head += (" and " if head and trace.races else "") + (
        many(len(trace.races), "race") if trace.races else ""
    )
    items = [element("li", _reported(trouble, source, links)) for trouble in problems[:MOST]]
    if len(problems) > MOST:
        items.append(element("li", f"and {len(problems) - MOST} more: print the trace"))
    ends = [x for x in trace.faults if type(x).__name__ != "UninitialisedRead"]
    stop = "The run stopped at the fault: the counts are of what came before." if ends else None
    return element(
        "section",
        element("h2", head, id="troubles" if links else None),
        element("ul", *items),
        element("p", stop) if stop else None,
        element("p", reach.strip()) if reach else None,
        class_="troubles",
    )


def _reported(trouble, source, links):
    kind = type(trouble).__name__
    places = {str(place): place for place in places_of(trouble)}
    lines = [_linked(line, places, source) if links else line for line in str(trouble).split("\n")]
    name = element("b", kind, ": ") if kind != "Race" else None
    return joined(name, element("span", joined(*lines, between="\n"), class_="pre"))


def _linked(text, places, source):
    """A line of text, with "line 12" as a link to it."""
    place = next((place for mention, place in places.items() if mention in text), None)
    file = place.file if place else next(iter(source.files), None)

    def link(match):
        key = source.key(file, int(match[1]))
        return element("a", match[0], href=f"#{key}") if key in source.keys else match[0]

    return Markup(LINE.sub(link, escaped(text))) if file else text
