"""Colour where it is shown, and a line that says what a long check is busy with."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator

GREEN, RED, FAINT = "32", "31", "2"
PATIENCE = 2  # seconds without a sign of life
WIDTH = 116  # columns of a notebook on a laptop's screen, 1,366 pixels wide


def in_notebook() -> bool:
    return type(sys.stdout).__module__.startswith("ipykernel")


def width() -> int:
    """Columns of a line: fewer only in a narrow terminal, so that notebooks are alike."""
    if in_notebook() or not sys.stdout.isatty():
        return WIDTH
    return max(40, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def paint(text: str, colour: str) -> str:
    """The text in a colour of the terminal, or as it is where colours are not shown.

    A notebook shows them always, so that its outputs are the same everywhere.
    """
    shown = in_notebook() or (sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    return f"\x1b[{colour}m{text}\x1b[0m" if shown else text


LETTERS = {
    "kappa": "κ", "beta": "β", "tau": "τ", "sigma": "σ", "ell": "ℓ", "sum": "Σ", "infty": "∞",
    "cdot": "·", "leftarrow": "←", "to": "→", "Rightarrow": "⇒", "le": "≤", "leq": "≤", "ge": "≥",
    "geq": "≥", "in": "∈", "dots": "…", "cdots": "⋯", "lfloor": "⌊", "rfloor": "⌋",
    "quad": "  ", "qquad": "   ", "left": "", "right": "", "big": "", "Big": "", "bigl": "",
    "bigr": "", "mathrm": "", "mathsf": "", "text": "",
}  # fmt: skip


def without_latex(markdown: str) -> str:
    """Markdown whose formulas are code that can be read: `$S_{t-1}^\\mathsf{T}$` → `S_(t-1)ᵀ`."""

    def code(match):
        text = (match[1] or match[2]).replace(r"^\mathsf{T}", "ᵀ").replace(r"^{\mathsf{T}}", "ᵀ")
        text = re.sub(r"\\[,; ]", " ", text)
        text = re.sub(r"\\([a-zA-Z]+)", lambda m: LETTERS.get(m[1], m[1]), text)
        while braces := re.search(r"([_^]?)\{([^{}]*)\}", text):
            index, inside = braces.groups()
            inside = f"({inside})" if index and len(inside) > 1 else inside
            text = text[: braces.start()] + index + inside + text[braces.end() :]
        return "`" + " ".join(text.split()) + "`"

    return re.sub(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", code, markdown, flags=re.S)


@contextlib.contextmanager
def busy(task: str) -> Iterator[None]:
    """After two seconds, a line with `task` and the time; it is gone when the work is done.

    Only where somebody waits: in a terminal or a notebook, and not where progress is switched off,
    as in tests.
    """
    if os.environ.get("RWKV_LESSONS_PROGRESS") == "off" or not (
        in_notebook() or sys.stdout.isatty()
    ):
        yield
        return
    finished, started, shown = threading.Event(), time.monotonic(), []

    def tick():
        while not finished.wait(1 if shown else PATIENCE):
            shown.append(f"… {task}, {time.monotonic() - started:.0f} s")
            print(f"\r{shown[-1]}", end="", flush=True)

    watcher = threading.Thread(target=tick, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        if shown:
            print("\r" + " " * len(shown[-1]) + "\r", end="", flush=True)
