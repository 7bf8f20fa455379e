"""A picture with sliders: each position is drawn in advance, and a script shows one of them.

    def draw(padding):
        drawing = Drawing(640, 120)
        drawing.box(0, 0, 20 * padding, 20, LOAD, str(padding))
        return drawing, f"{padding} columns of padding"

    movable({"padding": (0, 1, 2)}, draw)

That is the last line of a notebook's cell. `draw` is called once for each combination of values, by
name, and returns a `Drawing` (or a `Picture` of `style`, which is larger) and a sentence that says
what is to be seen. Positions are few, at most `MOST`: the page holds all of them.

The sliders move with the mouse, a finger or the arrow keys, Home and End; the sentence below
follows, for screen readers too. It works offline. Where scripts are off, the position to
start at stands there as a still picture. A notebook's stored text is its sentence, and
`print(shown)` says all of them.
"""

import base64
import html
import itertools
import math
from pathlib import Path
from urllib.parse import quote

from ..wording import Speech
from .colours import INK, PAPER
from .steps import as_data

SCRIPT = Path(__file__).with_name("movable.js")
MOST = 120  # positions of a picture; a drawing takes some 3 kB
SIZE = 9  # of letters, in pixels


class Drawing:
    """Boxes, lines and letters, in pixels from the upper left corner; small as SVG.

    Args:
        width, height: of all of it.
    """

    def __init__(self, width, height):
        self.width, self.height = width, height
        self.shapes, self.letters = {}, []  # {(fill, stroke): outlines}; words come on top

    def box(self, x, y, width, height, fill="none", text="", ink=INK, edge=PAPER):
        """A rectangle with a word in its middle."""
        outline = f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"
        self.shapes.setdefault((fill, edge), []).append(outline)
        if str(text):
            self.write(x + width / 2, y + height / 2 + 0.35 * SIZE, text, ink, "middle")

    def line(self, x1, y1, x2, y2, colour=INK):
        """A straight line."""
        self.shapes.setdefault(("none", colour), []).append(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")

    def write(self, x, y, text, ink=INK, anchor="start"):
        """Words on a base line; `anchor` is start, middle or end: which part of them is at x."""
        self.letters.append((x, y, str(text), ink, anchor))

    def svg(self):
        """All of it as a file."""
        paths = "".join(
            f"<path d='{''.join(outlines)}' fill='{fill}' stroke='{edge}'/>"
            for (fill, edge), outlines in self.shapes.items()
        )
        words = ""
        for (ink, anchor), some in itertools.groupby(sorted(self.letters, key=_look), _look):
            inner = "".join(
                f"<text x='{x:g}' y='{y:g}'>{html.escape(text)}</text>" for x, y, text, *_ in some
            )
            words += f"<g fill='{ink}' text-anchor='{anchor}'>{inner}</g>"
        size = f"width='{self.width:g}' height='{self.height:g}'"
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {self.width:g} "
            f"{self.height:g}' font-family='sans-serif' font-size='{SIZE}'>{paths}{words}</svg>"
        )


def _look(letters):
    return letters[3:]


class Movable:
    """A picture at each position of its sliders; a notebook shows it, `print` says all positions.

    Attributes:
        knobs: {name: values}; captions: a sentence for each position, the last slider fastest.
        at: which value of each knob comes first; first: the number of that position.
    """

    def __init__(self, knobs, sources, captions, at):
        self.knobs, self.sources, self.captions, self.at = knobs, sources, captions, at
        self.first = 0
        for values, n in zip(knobs.values(), at, strict=True):
            self.first = self.first * len(values) + n

    def __repr__(self):
        return f"{self.captions[self.first]} (movable: {', '.join(self.knobs)})"

    def __str__(self):
        return "\n".join(self.captions)

    def _repr_html_(self):
        names, captions = (list(map(Speech.say, texts)) for texts in (self.knobs, self.captions))
        knobs = [
            {"name": name, "values": [str(v) for v in values]}
            for name, values in zip(names, self.knobs.values(), strict=True)
        ]
        frames = [{"src": a, "said": b} for a, b in zip(self.sources, captions, strict=True)]
        data = as_data({"knobs": knobs, "frames": frames, "at": self.at})
        still, caption = self.sources[self.first], html.escape(captions[self.first], quote=True)
        label = Speech.say(f"picture with sliders: {', '.join(self.knobs)}")
        everything = html.escape("\n".join(captions))
        return (  # JupyterLab leaves keys alone where it is told to suppress its shortcuts
            '<div class="movable" role="group" data-lm-suppress-shortcuts="true" '
            f'aria-label="{html.escape(label)}">'
            f'<img src="{still}" alt="{caption}" style="max-width: 100%; background: white">'
            f'<p aria-live="polite">{caption}</p>'
            f'<script type="application/json">{data}</script>'
            f"<noscript><pre>{everything}</pre></noscript></div>"
            f"<script>{{{SCRIPT.read_text(encoding='utf-8')}}}</script>"
        )


def movable(knobs, draw, start=None):
    """Draws every position of the sliders.

    Args:
        knobs: {name: values}, a slider each, which shows values as they print.
        draw: (a value of each knob, by name) → (`Drawing` or `Picture`, sentence). A name with
            spaces comes with underscores.
        start: {name: value} of the first position, the still picture; else a knob's first value.

    Returns:
        A `Movable`.

    Raises:
        ValueError: a knob has no values, or not the one to start at, or there are more than `MOST`
            positions.
    """
    knobs = {name: tuple(values) for name, values in knobs.items()}
    positions = math.prod(map(len, knobs.values()))
    if not 0 < positions <= MOST:
        sizes = " × ".join(f"{len(values)} of {name!r}" for name, values in knobs.items())
        raise ValueError(f"{sizes} are {positions} positions: want 1 to {MOST}")
    names = [name.replace(" ", "_") for name in knobs]
    drawn = [
        draw(**dict(zip(names, values, strict=True)))
        for values in itertools.product(*knobs.values())
    ]
    start = start or {}
    at = [values.index(start.get(name, values[0])) for name, values in knobs.items()]
    return Movable(
        knobs, [_source(picture) for picture, _ in drawn], [caption for _, caption in drawn], at
    )


def _source(picture):
    """A picture as an address that holds all of it."""
    if isinstance(picture, Drawing):
        return "data:image/svg+xml," + quote(picture.svg(), safe=" =:/;,'()-.")
    png, _ = picture._repr_png_()
    return "data:image/png;base64," + base64.b64encode(png).decode()
