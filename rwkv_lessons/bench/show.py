"""Progress while it measures, and the rows as a table on a terminal."""

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

WIDTH = 190  # of a log that is no terminal


def console():
    wide = Console()
    return wide if wide.is_terminal else Console(width=WIDTH)


def progress():
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console(), transient=True)


def rows_table(rows, letters="B, T, H, N"):
    """One line per row, one column per quantity that was measured at all.

    Args:
        letters: of the rows' shapes, as an `Operation` has them.
    """
    table = Table(box=None, pad_edge=False)
    columns = []
    for heading, (side, text) in COLUMNS.items():
        cells = [text(row) for row in rows]
        if any(cell not in ("–", "") for cell in cells):
            heading = letters.replace(", ", ",") if heading == SHAPE else heading
            table.add_column(heading, justify=side, overflow="fold")
            columns.append(cells)
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    return table


def number(value, form):
    """`value` in a format, or a dash if it was not measured."""
    return "–" if value is None else format(value, form)


def _spread(row):
    return "–" if row.p20_ms is None else f"{row.p20_ms:.3f} … {row.p80_ms:.3f}"


def _mebibytes(row):
    return number(None if row.extra_bytes is None else row.extra_bytes / 2**20, ".0f")


SHAPE = "shape"  # headed by the operation's letters
COLUMNS = {  # heading: (side, row → text)
    "method": ("left", lambda row: row.method),
    SHAPE: ("left", lambda row: ",".join(map(str, row.shape))),
    "dtype": ("left", lambda row: row.dtype),
    "error": ("right", lambda row: number(row.error, ".1e")),
    "ms": ("right", lambda row: number(row.median_ms, ".3f")),
    "p20 … p80": ("right", _spread),
    "n": ("right", lambda row: number(row.n, "d")),
    "wall ms": ("right", lambda row: number(row.host_ms, ".3f")),
    "GB/s": ("right", lambda row: number(row.gb_per_s, ".0f")),
    "TFLOP/s": ("right", lambda row: number(row.tflop_per_s, ".2f")),
    "of roofline": ("right", lambda row: number(row.roofline_share, ".0%")),
    "extra MiB": ("right", _mebibytes),
    "threads": ("right", lambda row: number(row.block, "d")),
    "registers": ("right", lambda row: number(row.registers, "d")),
    "local B": ("right", lambda row: number(row.local_bytes, "d")),
    "shared B": ("right", lambda row: number(row.shared_bytes, "d")),
    "": ("left", lambda row: row.problem or row.note or ""),
}
