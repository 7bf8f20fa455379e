"""How every figure of the lessons looks: one palette, one type size, at most ten inches wide."""

from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure

from ..wording import Speech
from .colours import ATOMIC as ATOMIC
from .colours import FAINT as FAINT
from .colours import INK, OKABE_ITO, PAPER
from .colours import LOAD as LOAD
from .colours import OF_OP as OF_OP
from .colours import STORE as STORE

WIDTH = 10  # inches; a notebook's output cell at the usual zoom
DPI = 100

_PARAMETERS = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(
        color=[
            OKABE_ITO[n] for n in "blue,vermillion,green,orange,sky blue,purple,black".split(",")
        ]
    ),
    "figure.constrained_layout.w_pad": 0.08,  # inches: no title touches an edge
    "figure.constrained_layout.h_pad": 0.08,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "svg.hashsalt": "lessons",  # the same identifiers in every run
}


def use():
    """Sets matplotlib's defaults for the rest of the session."""
    _take_bundled_fonts()
    mpl.rcParams.update(_PARAMETERS)


@cache
def _take_bundled_fonts():
    """Fonts as matplotlib brings them: a machine's own may be others, of the same names.

    Its list of fonts is kept for all of a user's environments, and may lack those of this one.
    """
    fonts, folder = font_manager.fontManager, Path(mpl.get_data_path(), "fonts", "ttf")
    installed, fonts.ttflist = fonts.ttflist, []
    for file in sorted(folder.glob("*.ttf")):
        fonts.addfont(file)
    names = {font.name for font in fonts.ttflist}
    fonts.ttflist += [font for font in installed if font.name not in names]


def figure(height, width=WIDTH):
    """An empty figure in the house style, sizes in inches; not known to pyplot, so shown once."""
    use()
    return Figure(figsize=(width, height), layout="constrained")


class Picture:
    """A figure, and a sentence that says the same: notebooks show one, nbval compares the other.

    Attributes:
        figure: a matplotlib Figure.
        text: what the figure shows, in one line (one per part).
    """

    text: str

    def __init__(self, figure, text):
        self.figure, self.text = figure, text

    def save(self, path: "str | Path") -> None:
        """Writes the figure; the suffix of `path` says in which format."""
        self.figure.savefig(path)

    def _repr_png_(self):
        """The picture with two pixels for each one shown, for sharp screens; its size and text."""
        import io

        from PIL import Image

        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=2 * DPI)
        image = Image.open(file).convert("RGB")
        width, height = image.size
        file = io.BytesIO()
        image = image.quantize(256, Image.Quantize.MAXCOVERAGE)  # a third of the bytes
        image.save(file, format="png", optimize=True)
        alt = in_one_line(Speech.say(self.text))
        shown = {"width": width // 2, "height": height // 2, "alt": alt}
        return file.getvalue(), shown

    def __repr__(self) -> str:
        return self.text


def in_one_line(text):
    """The text of a picture as a screen reader says it."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def box(ax, x, y, width, height, colour, edge="none", line=0.6, alpha=1):
    """Adds a rectangle whose lower left corner is (x, y), in the units of the axes."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, fc=colour, ec=edge, linewidth=line, alpha=alpha))
