"""Which statements of a notebook a function depends on, so that the others need not run."""

import ast
import re
import symtable
from typing import NamedTuple

DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # their bodies run later
TARGETS = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
TIMED = re.compile(r"^%%(time|capture)\b.*")  # what stands below runs in the notebook's namespace


class Statement(NamedTuple):
    """A statement at the top level of a cell.

    Args:
        cell: the number of its cell.
        node: its syntax tree.
        reads: global names that it reads when it runs.
        later: global names that functions in it read when they are called.
        binds: names that it sets, or whose values it writes into.
        anew: whether it sets them whatever they were before.
    """

    cell: int
    node: ast.stmt
    reads: frozenset[str]
    later: frozenset[str]
    binds: frozenset[str]
    anew: bool


def needed(statements: list[Statement], name: str, own: int) -> list[Statement]:
    """Those that decide what `name` is after the last statement, in their order.

    Each binding of a name is followed back to what it reads, from where it stands; what a function
    reads is followed from the end, because it may be called there, and from the function itself.

    Args:
        statements: of all cells, in the order in which they run.
        name: of the function in question.
        own: the cell all of whose statements count.
    """
    end = len(statements)
    chosen, visited = set(), set()
    queue = [(name, end)]

    def choose(n):
        if n not in chosen:
            chosen.add(n)
            queue.extend((read, n) for read in statements[n].reads | statements[n].later)
            queue.extend((read, end) for read in statements[n].later)

    for n, statement in enumerate(statements):
        if statement.cell == own:
            choose(n)
    while queue:
        target, before = queue.pop()
        for n in range(before - 1, -1, -1):
            if (target, n) in visited:
                break
            visited.add((target, n))
            statement = statements[n]
            if target in statement.binds or "*" in statement.binds:
                choose(n)
                if target in statement.binds and statement.anew:
                    break
    return [statements[n] for n in sorted(chosen)]


def parsed(source: str, file: str) -> ast.Module:
    """A cell's syntax tree, without the lines that are for IPython alone.

    Raises:
        SyntaxError: even without them it is not Python.
    """
    source = TIMED.sub("", source)
    try:
        return ast.parse(source, file)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager  # slow to import

        try:
            tree = ast.parse(TransformerManager().transform_cell(source))
        except SyntaxError:
            tree = None
        if tree is None:
            raise
    tree.body = [node for node in tree.body if not _is_magic(node)]
    return tree


def _is_magic(node):
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("get_ipython()")


def statements_of(tree: ast.Module, cell: int) -> list[Statement]:
    """The statements of a cell, taken apart."""
    return [_statement(node, cell) for node in tree.body]


def _statement(node, cell):
    top = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    reads = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    binds |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        binds = {"*"}
    later = set()
    for scope in _scopes(top):
        own = {s.get_name() for s in scope.get_symbols() if s.is_global() and s.is_referenced()}
        binds |= {s.get_name() for s in scope.get_symbols() if s.is_declared_global()}
        (later if scope.get_type() == "function" else reads).update(own)
    written = _written_into(node)
    anew = isinstance(node, TARGETS) and not written & binds
    return Statement(cell, node, *map(frozenset, (reads | written, later, binds | written)), anew)


def _scopes(table):
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def _written_into(node):
    """Names whose values may change: `x[0] = 1`, `x.y = 1`, `x.append(1)`, `x += 1`."""
    names = set()
    queue = [node]
    while queue:
        part = queue.pop()
        if isinstance(part, DEFERRED):
            continue
        if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            names.add(_root(part))
        elif isinstance(part, ast.AugAssign):
            names.add(_root(part.target))
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            if isinstance(part.value.func, ast.Attribute):
                names.add(_root(part.value.func))
        queue.extend(ast.iter_child_nodes(part))
    return names - {None}


def _root(node):
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
