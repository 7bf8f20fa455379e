"""Draws a `graph TD` of Mermaid as SVG, so that a page shows it without a script.

Takes what the docs use: nodes `name` or `name["text"]`, arrows `a --> b`. A node stands one row
below the lowest of those that point to it; within a row, nodes stand under the middle of those.
"""

import html
import re
import textwrap

ARROW = re.compile(r"\s*-->\s*")
NODE = re.compile(r'(\w+)(?:\["(.+?)"\])?$')
WIDTH, GAP, ROW, LINE, MARGIN = 190, 24, 78, 15, 10  # pixels; LINE: of text
CHARACTERS = 27  # a line of a node


def svg(text: str, alternative: str) -> str:
    """The drawing of a flowchart.

    Args:
        text: Mermaid's, from `graph TD` on.
        alternative: what a screen reader says instead.

    Raises:
        ValueError: a line is neither a node nor arrows between nodes, or arrows go in a circle.
    """
    labels, arrows = _parsed(text)
    rows = _rows(labels, arrows)
    tall = {n: len(_lines(label)) for n, label in labels.items()}
    widest = max(len(row) for row in rows)
    width = 2 * MARGIN + widest * WIDTH + (widest - 1) * GAP
    places, top = {}, MARGIN
    for row in rows:
        height = LINE * max(tall[n] for n in row) + 14
        above = [_middle(places, arrows, n, width / 2) for n in row]
        order = [n for _, n in sorted(zip(above, row, strict=True))]
        left = (width - len(row) * WIDTH - (len(row) - 1) * GAP) / 2
        for i, n in enumerate(order):
            places[n] = (left + i * (WIDTH + GAP), top, height)
        top += height + ROW - 30
    parts = [_arrow(places[a], places[b]) for a, b in arrows]
    parts += [_node(*places[n], _lines(labels[n])) for n in labels]
    return (
        f'<svg class="flowchart" role="img" aria-label="{html.escape(alternative)}" '
        f'viewBox="0 0 {width:.0f} {top - ROW + 40:.0f}" xmlns="http://www.w3.org/2000/svg">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
        f"</defs>{''.join(parts)}</svg>"
    )


def _parsed(text):
    """({name: label}, [(from, to)])."""
    labels, arrows = {}, []
    for line in text.strip().splitlines():
        if line.strip() in ("", "graph TD"):
            continue
        names = []
        for part in ARROW.split(line.strip()):
            node = NODE.match(part)
            if not node:
                raise ValueError(f"a flowchart has the line {line.strip()!r}, needs a --> b")
            name, label = node.groups()
            labels[name] = label or labels.get(name, name)
            names.append(name)
        arrows += zip(names, names[1:], strict=False)
    return labels, arrows


def _rows(labels, arrows):
    """Names by row, from the top."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        before = dict(depth)
        for a, b in arrows:
            depth[b] = max(depth[b], depth[a] + 1)
        if depth == before:
            break
    else:
        raise ValueError("the arrows of a flowchart go in a circle")
    return [[n for n in labels if depth[n] == d] for d in range(max(depth.values()) + 1)]


def _middle(places, arrows, name, otherwise):
    """The middle of the nodes that point to this one."""
    lefts = [places[a][0] for a, b in arrows if b == name and a in places]
    return sum(lefts) / len(lefts) if lefts else otherwise


def _lines(label):
    return textwrap.wrap(label, CHARACTERS)


def _arrow(start, end):
    x, y = start[0] + WIDTH / 2, start[1] + start[2]
    to_x, to_y = end[0] + WIDTH / 2, end[1]
    bend = min(40, (to_y - y) / 2)
    return (
        f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} '
        f'{to_x:.0f} {to_y - 1:.0f}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>'
    )


def _node(left, top, height, lines):
    first = top + height / 2 - LINE * (len(lines) - 1) / 2 + 4
    spans = "".join(
        f'<tspan x="{left + WIDTH / 2:.0f}" y="{first + LINE * n:.0f}">{html.escape(x)}</tspan>'
        for n, x in enumerate(lines)
    )
    return (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
        f'<text text-anchor="middle">{spans}</text>'
    )
