"""Which cells of a notebook can come out differently once its exercises are solved."""

import ast


def touched(cells):
    """The numbers of the cells to run for the solved state; the others would run as before.

    Those are the exercises, their checks, what reads a name that one of these sets, and so on; and
    what sets a name that one of them reads. The first cell always runs.

    Args:
        cells: (source, whether it is an exercise or a check) each, in order.
    """
    names = [_names(source) for source, _ in cells]
    chosen, differ = {0}, set()
    for n, ((_, exercise), (read, bound)) in enumerate(zip(cells, names, strict=True)):
        if exercise or read & differ:
            chosen.add(n)
            differ |= bound
        else:
            differ -= bound
    needed = set()
    for n, (read, bound) in reversed(list(enumerate(names))):
        if n in chosen or bound & needed:
            chosen.add(n)
            needed |= read
    return chosen


def _names(source):
    """The names that a cell reads, and those it sets or writes into."""
    python = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
    read, bound = set(), set()
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            bound |= {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)}
    return read, bound
