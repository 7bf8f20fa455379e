"""The ladder of designs, drawn from the page that tells of them: docs/appendix/wkv6_log.md."""

import re
import textwrap

from warplens.pictures import style
from warplens.pictures.style import Picture

from ...course.exercises import ROOT

PAGE = ROOT / "docs" / "appendix" / "wkv6_log.md"
NUMBER = re.compile(r"\d+\.\d+")


def rows(section="Forward"):
    """The designs of a section: {column: text} each, in the order in which they were tried.

    "design" says what was changed, with what "the same" stands for left as it is.

    Raises:
        LookupError: the page has no such table.
    """
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(rf"^## {section}\n[^|]*?^((?:\|.*\n)+)", text, re.M)
    lines = table[1].splitlines() if table else []
    if len(lines) < 3:
        raise LookupError(f"{PAGE.name} has no table under {section!r}")
    head, _, *body = ([cell.strip() for cell in x.strip("| ").split("|")] for x in lines)
    return [dict(zip(head, cells, strict=True)) for cells in body]


def forward_ladder(least=None):
    """Each design of the forward pass with its time in ms, as tuning runs gave them.

    Args:
        least: ms, a line to compare with.
    """
    designs = [(row, float(NUMBER.search(row["ms"])[0])) for row in rows()]
    figure = style.figure(0.37 * len(designs) + 0.7)
    ax = figure.subplots()
    best, lines = float("inf"), []
    for y, (row, ms) in enumerate(designs):
        better, stayed = ms < best, "**" in row["design"]
        best = min(best, ms)
        colour = style.OKABE_ITO["green"] if stayed else style.LOAD if better else style.FAINT
        style.box(ax, 0, y - 0.36, ms, 0.72, colour)
        tokens, warps = row["tokens a chunk, warps"].split(", ")
        name = row["design"].strip("*")
        label = f"{name} · {tokens} tokens, {warps} warps, {row['products']}"
        label = "\n".join(textwrap.wrap(label, 62, max_lines=2, placeholder=" …"))
        ax.text(-0.02, y, label, ha="right", va="center", size=7.5, linespacing=0.95)
        ax.text(ms + 0.015, y, f"{ms:g} ms", va="center", size=7)
        lines.append(f"{ms:g} ms: {name}, {tokens} tokens, {warps} warps")
    if least is not None:
        ax.axvline(least, color=style.INK, linewidth=1)
        ax.text(least + 0.01, -0.75, "r, k, v, w and o at the speed of a copy", size=7)
    ax.set(xlim=(0, 2.1), ylim=(len(designs) - 0.4, -1.1), yticks=[], xlabel="ms")
    for label, colour in (
        ("faster than all before", style.LOAD),
        ("no faster", style.FAINT),
        ("kept", style.OKABE_ITO["green"]),
    ):
        ax.plot([], [], "s", color=colour, label=label)
    ax.legend(loc="lower right", fontsize=8)
    return Picture(figure, "\n".join(lines))
