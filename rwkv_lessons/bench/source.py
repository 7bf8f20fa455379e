"""A fingerprint of the code behind a measurement: a record is stale when it has changed.

Only what can change the machine code counts. The source is parsed and its tree is hashed without
docstrings, so comments, layout and the markers of exercises are free to change. Python's own
`ast.dump` differs between versions; `_canonical` leaves out empty fields and does not.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "rwkv_lessons/launch.py"  # the only import that is followed: it makes instructions


def fingerprint(*sources, follow=False):
    """sha256 of some code, and of everything at the top of the same file that it uses.

    Args:
        follow: what is imported from other files of this package counts, too.
        sources: "path/of/file.py::name" for a function, class or constant, "path/of/file.py" for a
            whole file; relative to the repository.

    Raises:
        ValueError: the file defines no such name.
        OSError: there is no such file.
    """
    seen = {}
    for source in sources:
        file, _, name = source.partition("::")
        definitions = _definitions(file)
        if name and name not in definitions:
            raise ValueError(f"{file} defines no {name}")
        for wanted in [name] if name else definitions:
            _collect(file, wanted, seen, follow)
    text = "\n".join(seen[key] for key in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()


def source_of(function):
    """ "path/of/file.py::name" of a function or of a numba kernel."""
    f = getattr(function, "py_func", function)
    return f"{Path(f.__code__.co_filename).resolve().relative_to(ROOT).as_posix()}::{f.__name__}"


def relative_imports(file):
    """`file` and what it imports with dots, and so on: the operations that it is made of.

    launch.py is left out: a fingerprint follows it by itself.
    """
    files, to_read = set(), [file]
    while to_read:
        file = to_read.pop()
        files.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                found = [folder / f"{name.name}.py" for name in node.names]
                found.append(folder.with_suffix(".py"))
                to_read += [x for x in found if x.exists() and x not in files]
        files.discard(ROOT / LAUNCH)
    return files


def _collect(file, name, seen, follow=False):
    """Adds the definition of `name`, and of the names it uses, to `seen`."""
    node = _definitions(file).get(name)
    if node is None or (file, name) in seen:
        return
    if isinstance(node, ast.ImportFrom):
        original = {a.asname or a.name: a.name for a in node.names}[name]
        if (node.module or "").split(".")[-1] == "launch":
            _collect(LAUNCH, original, seen, follow)
        elif follow and node.level and node.module:
            other = Path(file).parents[node.level - 1].joinpath(*node.module.split("."))
            _collect(f"{other.as_posix()}.py", original, seen, follow)
        return
    text, names = _read(node)
    seen[file, name] = f"{name} = {text}"
    for used in names:
        _collect(file, used, seen, follow)


def _definitions(file):
    """What the top level of `file` defines or imports by name: name → tree."""
    return _defined_in((ROOT / file).read_text(encoding="utf-8"))


@cache
def _defined_in(text):
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: node for a in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            found |= dict.fromkeys(names, node)
    return found


@cache
def _read(node):
    """A definition as text, and the names in it: most records ask for the same ones."""
    names = dict.fromkeys(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    return _canonical(node), tuple(names)


def _canonical(node):
    """The tree as text: docstrings, positions and empty fields left out."""
    if isinstance(node, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            fields["body"] = node.body[1:]
        inside = ", ".join(f"{name}={_canonical(value)}" for name, value in fields.items())
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return "[" + ", ".join(map(_canonical, node)) + "]"
    return repr(node)
