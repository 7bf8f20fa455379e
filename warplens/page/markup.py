"""HTML and SVG as text, in which all that was not made here is escaped."""

import html


class Markup(str):
    """Text that is markup already."""


def element(tag, *inside, **attributes):
    """`<tag name="value">inside</tag>`.

    Args:
        inside: pieces; what is no `Markup` is text, and None is left out.
        attributes: `class_` is class, `aria_label` aria-label; None is left out, True has no value.
    """
    start = "".join(_attribute(n, x) for n, x in attributes.items() if x not in (None, False))
    return Markup(f"<{tag}{start}>{joined(*inside)}</{tag}>")


def joined(*pieces, between=""):
    """The pieces one after the other; what is no `Markup` is text, and None is left out."""
    pieces = [piece for piece in pieces if piece is not None]
    return Markup(between.join(x if isinstance(x, Markup) else escaped(x) for x in pieces))


def escaped(text):
    return html.escape(str(text), quote=True)


def _attribute(name, value):
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(value)}"'


def picture(wide, tall, title, says, *inside, **attributes):
    """An <svg> of so many units, with a title and a description for those who do not see it."""
    named = {"viewBox": f"0 0 {wide:g} {tall:g}", "role": "img", "aria_label": title}
    described = element("title", title), element("desc", says)
    return element("svg", *described, *inside, **named, **attributes)


def box(x, y, wide, tall, class_, title=None, **attributes):
    """A <rect>, whose title shows where one points."""
    inside = [element("title", title)] if title else []
    where = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{wide:g}", "height": f"{tall:g}"}
    return element("rect", *inside, **where, class_=class_, **attributes)


def label(x, y, text, class_=None):
    return element("text", text, x=f"{x:g}", y=f"{y:g}", class_=class_)


def table(name, heads, rows, of_row=None):
    """A <table>: the first cell of a row is its heading; numbers stand right.

    Args:
        of_row: a function of a row's number that gives the attributes of its <tr>.
    """
    top = element("tr", *(element("th", head, scope="col") for head in heads))
    body = [
        element("tr", *map(_cell, range(len(row)), row), **(of_row(n) if of_row else {}))
        for n, row in enumerate(rows)
    ]
    return element("table", element("thead", top), element("tbody", *body), aria_label=name)


def _cell(n, value):
    if n == 0:
        return element("th", value, scope="row")
    if isinstance(value, (int, float)):
        return element("td", f"{value:,}", class_="number")
    return element("td", value)
