"""A picture of a traced Triton kernel on a row of numbers: which program has which, which lanes."""

import numpy as np

from warplens.pictures import style
from warplens.pictures.style import Picture

SHADES = ("blue", "sky blue")


def lane_elements(trace, array, BLOCK):
    """The lanes of all programs side by side: the element each one has, or that it has none.

    Args:
        trace: a `TritonTrace` of programs that have BLOCK lanes each.
        array: a tensor of one axis, every element of which is asked for by one program.
    """
    owned = {program[0]: np.flatnonzero(x) for program, x in trace.by_program(array).items()}
    figure = style.figure(1.1, min(style.WIDTH, 0.6 * BLOCK * len(owned)))
    axes = figure.subplots()
    for program, elements in sorted(owned.items()):
        for lane in range(BLOCK):
            element = elements[lane] if lane < len(elements) else None
            _square(axes, program * BLOCK + lane, element, style.OKABE_ITO[SHADES[program % 2]])
        middle = program * BLOCK + BLOCK / 2
        axes.text(middle, 1.3, f"program {program}", ha="center", color=style.INK)
    axes.set(xlim=(0, BLOCK * len(owned)), ylim=(-0.1, 1.6))
    axes.axis("off")
    texts = [_text(program, owned[program], BLOCK) for program in sorted(owned)]
    return Picture(figure, f"{array}: " + "; ".join(texts))


def _square(axes, x, element, colour):
    from matplotlib.patches import Rectangle

    here = element is not None
    face, edge = (colour, colour) if here else ("none", style.INK)
    line = "-" if here else ":"
    axes.add_patch(Rectangle((x + 0.05, 0.05), 0.9, 0.9, fc=face, ec=edge, ls=line))
    text, ink = (element, "white") if here else ("–", style.INK)
    axes.text(x + 0.5, 0.5, text, ha="center", va="center", color=ink)


def _text(program, elements, BLOCK):
    idle = BLOCK - len(elements)
    masked = f", {idle} lanes masked off" if idle else ""
    return f"program {program} has {elements[0]} to {elements[-1]}{masked}"
