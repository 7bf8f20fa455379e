"""What is wrong with a page of the site for a search engine, a screen reader or a keyboard."""

import re
from html.parser import HTMLParser

VOID = {"img", "meta", "link", "input", "br", "hr", "path", "rect", "use", "source"}


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text, self.stack = [], {}, []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(len(self.tags) - 1)

        self.handle_data(dict(attributes).get("alt") or "")  # names the link around a picture

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.handle_data(dict(attributes).get("alt") or "")

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        while self.stack and self.tags[self.stack.pop()][0] != tag:
            pass

    def handle_data(self, data):
        for n in self.stack:
            self.text[n] = self.text.get(n, "") + data


def audit(page: str) -> list[str]:
    """A line for each thing that is wrong."""
    read = _Reader()
    read.feed(page)
    of = {}
    for n, (tag, attributes) in enumerate(read.tags):
        of.setdefault(tag, []).append((attributes, read.text.get(n, "").strip()))
    return [*_head(of), *_headings(read), *_names(of, read), *_keyboard(of), *_network(of)]


def _head(of):
    meta = {x.get("name") or x.get("property"): x.get("content", "") for x, _ in of["meta"]}
    if not of["html"][0][0].get("lang"):
        yield "no language"
    if not of.get("title") or len(of["title"][0][1]) < 5:
        yield "no title"
    if not 20 <= len(meta.get("description", "")) <= 160:
        yield f"description of {len(meta.get('description', ''))} characters, needs 20 to 160"
    yield from (f"no {name}" for name in ("viewport", "og:title") if not meta.get(name))
    if not any("icon" in x.get("rel", "") for x, _ in of["link"]):
        yield "no icon"


def _headings(read):
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch("h[1-6]", tag)]
    if levels.count(1) != 1:
        yield f"{levels.count(1)} headings of the first level"
    for before, level in zip(levels, levels[1:], strict=False):
        if level > before + 1:
            yield f"a heading of level {level} after one of {before}"


def _names(of, read):
    ids = [x["id"] for _, x in read.tags if x.get("id")]
    yield from (f"two of the id {name}" for name in sorted({x for x in ids if ids.count(x) > 1}))
    yield from (f"no alt: {x.get('src')}" for x, _ in of.get("img", ()) if not x.get("alt"))
    for tag in ("a", "button"):
        for attributes, text in of.get(tag, ()):
            named = text or attributes.get("aria-label") or attributes.get("title")
            if not named and "href" in attributes or tag == "button" and not named:
                yield f"{tag} without a name: {attributes}"


def _keyboard(of):
    yield from (
        "code that a keyboard cannot scroll" for x, _ in of.get("pre", ()) if "tabindex" not in x
    )
    tables = [x for x, _ in of.get("div", ()) if "table-wrapper" in x.get("class", "")]
    yield from ("a table that a keyboard cannot scroll" for x in tables if "tabindex" not in x)


def _network(of):
    for tag, name in (("script", "src"), ("link", "href"), ("img", "src")):
        for attributes, _ in of.get(tag, ()):
            address = attributes.get(name, "")
            if re.match("(https?:)?//", address) and attributes.get("rel") != "canonical":
                yield f"from the network: {address}"
