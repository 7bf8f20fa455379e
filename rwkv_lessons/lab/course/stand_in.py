"""Says so in each cell of a notebook that uses a reference answer for a learner's failed one."""

import ast
import sys

from .language import say

_references: dict[int, str] = {}  # identity of a reference answer → its exercise
_listening: list = []  # the shell, once it has been asked


def stands_in(id: str, reference) -> None:
    """From now on, cells that use `reference` say that it is not the learner's."""
    _references[_key(reference)] = id
    shell = _shell()
    if shell and not _listening:
        shell.events.register("pre_run_cell", _note)
        _listening.append(shell)


def stands_back(reference) -> None:
    """The learner's own is right now."""
    _references.pop(_key(reference), None)


def used(cell: str, names: dict) -> list[str]:
    """The exercises whose reference answer a cell uses, by a name or as `result.kernel`.

    A name that the cell itself binds is the learner's, as that of a function that calls itself is.
    """
    try:
        nodes = list(ast.walk(ast.parse(cell)))
    except SyntaxError:
        return []
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    bound |= {(n.asname or n.name) for n in nodes if isinstance(n, ast.alias)}
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - bound
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    if "check" in called:  # it says so itself
        return []
    results = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and n.attr == "kernel"
               and isinstance(n.value, ast.Name)} - bound  # fmt: skip
    values = [names.get(name) for name in sorted(read)]
    values += [getattr(names.get(name), "kernel", None) for name in sorted(results)]
    ids = (_references.get(_key(value)) for value in values if value is not None)
    return list(dict.fromkeys(id for id in ids if id))


def _key(reference):
    return id(reference)


def _note(info):
    for name in used(info.raw_cell, _listening[0].user_ns):
        print(say(f"(In this cell the reference answer stands in for your {name}.)"))


def _shell():
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
