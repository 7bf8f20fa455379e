"""A fingerprint of the code behind a measurement: a record is stale when it has changed.

There are two: of all the code, and of the kernels alone. While the kernels are as they were, what
a GPU runs is as it was measured, whatever has changed around them on the host.

It is taken of a definition and of everything of this repository that it uses, also in other files,
so it says whether a kernel's own code changed, or what it calls. Where that code stands, and what
its functions, parameters and variables are called, is left out, as are docstrings, comments, layout
and the words of errors: files can be moved, and names improved, without measuring again. So is the
lab, by which lessons load each other's solutions.

An operation's own function picks one of its methods from a table (runtime/methods.py). The table
is left out as well: a row names the methods that its call took beside the function, so that it
depends on these, and a new method changes no row that did not take it.

Python's own `ast.dump` differs between versions; the text made here leaves out empty fields and
does not.
"""

import ast
import hashlib
import inspect
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import FORWARD, ROOT

DEFINITIONS = ast.FunctionDef | ast.ClassDef
METHOD_TABLE = "method_table"  # the decorator of runtime/methods.py
ON_GPU = {"jit", "constexpr_function", "intrinsic"}  # decorators of what a GPU runs
OTHER = re.compile("\0(.*?)::(.*?)\0")  # another definition's place in a text
_results = {}
_consulted = set()  # the files that the text being made depends on


def fingerprint(*sources, statements=True):
    """sha256 of some code, and of everything of this repository that it uses.

    Args:
        sources: "path/of/file.py::name" for a function, class or constant, "path/of/file.py" for a
            whole file; relative to the repository.
        statements: what else the files do when they are imported counts, too, and decorators of
            this repository. These register functions with torch, or choose a compiler: without
            them, a kernel does not reach the code that launches it.

    Raises:
        ValueError: the file defines no such name.
        OSError: there is no such file.
    """
    return _cached(_of_all, sources, statements)


def fingerprints_of_kernels(*sources):
    """Of each kernel that some code may launch, a fingerprint of it and all that it uses, sorted.

    Args:
        sources: as of `fingerprint`.
    """
    return _cached(_of_kernels, sources)


def _cached(take, *arguments):
    """take(*arguments) → files, result; the result of before if these files are as they were."""
    before = _results.get((take, arguments))
    with suppress(OSError):  # a file has gone
        if before and all(_changed(file) == x for file, x in before[0]):
            return before[1]  # most records ask for the same
    files, result = take(*arguments)
    _results[take, arguments] = [(file, _changed(file)) for file in files], result
    return result


def _texts(sources, statements):
    texts = _reached(sources, statements)
    return {file for file, _ in texts}, texts


def _of_all(sources, statements):
    texts = _cached(_texts, sources, statements)
    return {file for file, _ in texts}, _digest(texts.values())


def _of_kernels(sources):
    reached = _cached(_texts, sources, True)
    named = ((file, name) for file, name in reached if isinstance(name, str))
    kernels = [key for key in named if _is_kernel(_module(key[0]).defined[key[1]])]
    digests = {_cached(_of_all, (f"{file}::{name}",), False) for file, name in kernels}
    return {file for file, _ in reached}, tuple(sorted(x[:12] for x in digests))


def _digest(texts):
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def source_of(function):
    """ "path/of/file.py::name" of a function or a kernel; of one made in a function, of that."""
    f = plain(function)
    file = Path(f.__code__.co_filename).resolve().relative_to(ROOT)
    return f"{file.as_posix()}::{f.__qualname__.split('.')[0]}"


def plain(kernel):
    """The Python function under the decorators of numba or Triton."""
    function = kernel
    while not inspect.isfunction(function):
        function = getattr(function, "py_func", None) or getattr(function, "fn", None)
        if function is None:
            raise TypeError(
                f"kernel is a {type(kernel).__name__}, needs a kernel or a plain function"
            )
    return function


def kernel_code():
    """The code of all operations, and of what compiles and launches it, as `fingerprint` asks."""
    sources = {}
    for operation in OPERATIONS.values():
        if operation.timed == FORWARD:  # with gradients it is the same code
            file = f"rwkv_lessons/{operation.package}/__init__.py"
            names = _module(file).defined if operation.public else ()
            tables = [f"{file}::{name}" for name in names if _is_table(file, name)]
            sources |= dict.fromkeys([*operation.sources(), *tables])
    return tuple(sources)


def files_of(*sources):
    """The files, relative to the repository, in which the code of `fingerprint` stands."""
    return sorted({file for file, _ in _reached(sources)})


@cache
def _is_kernel(definition):
    """True for what is compiled for a GPU, and for a function in which that is made."""
    defined = (n for n in ast.walk(definition) if isinstance(n, ast.FunctionDef))
    return any(_last_name(x) in ON_GPU for n in defined for x in n.decorator_list)


def _is_table(file, name):
    """True for a table of methods."""
    decorators = getattr(_module(file).defined[name], "decorator_list", ())
    return any(_last_name(x) == METHOD_TABLE for x in decorators)


def _last_name(node):
    """ "jit" of `triton.jit(…)`."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _changed(file):
    return os.stat(os.path.join(ROOT, file)).st_mtime_ns  # a Path takes four times as long


def _reached(sources, statements=True):
    """(file, name) → text of each definition, in the order in which the code comes upon them."""
    queue, texts = [], {}
    for source in sources:
        file, _, name = source.partition("::")
        if name and not _definition(file, name):
            raise ValueError(f"{file} defines no {name}")
        queue += [(file, name)] if name else [(file, x) for x in _module(file).defined]
    queue = list(dict.fromkeys(filter(None, (_definition(*key) for key in queue))))
    starts = frozenset(queue)
    number = {key: n for n, key in enumerate(queue)}
    modules = set()

    def meet(key):
        """The number of a definition, which joins the queue when it is first met."""
        if key not in number:
            number[key] = len(queue)
            queue.append(key)
        return number[key]

    def text_of(*definition):
        text = _cached(_text_with_places, *definition)
        return OTHER.sub(lambda match: str(meet((match[1], match[2]))), text)

    for key in queue:  # it grows meanwhile
        file, name = key
        if key not in starts and _is_table(file, name):
            continue
        texts[key] = text_of(file, name, statements)
        if statements and file not in modules:  # what registers with torch stands beside them
            modules.add(file)
            for n in range(len(_module(file).statements)):
                texts[file, n] = text_of(file, n, True)
    return texts


def _text_with_places(file, name, decorators):
    """Of one definition, or of the statement with this number, a text in which others are named."""
    _consulted.clear()
    module = _module(file)
    node = module.defined[name] if isinstance(name, str) else module.statements[name]
    text = _Text(file, decorators).of(node)
    return set(_consulted), text


class _Module:
    """The top level of a file: what it defines or imports, by name, and what it only does.

    Of a name with several meanings, as without Triton, the first counts.
    """

    def __init__(self, file):
        self.defined, self.imported, self.statements = {}, {}, []
        self._read(ast.parse((ROOT / file).read_text(encoding="utf-8")).body)

    def _read(self, body):
        for node in body:
            if isinstance(node, DEFINITIONS):
                self._define(node.name, node)
            elif isinstance(node, ast.Import):
                for x in node.names:
                    self.imported.setdefault(x.asname or x.name.split(".")[0], x.name)
            elif isinstance(node, ast.ImportFrom):
                for x in node.names:
                    self.imported.setdefault(x.asname or x.name, (node, x.name))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                    self._define(name.id, node)
            elif isinstance(node, ast.If | ast.Try):
                self._read([*node.body, *getattr(node, "orelse", ())])
            elif not _says_nothing(node):
                self.statements.append(node)

    def _define(self, name, node):
        if name not in self.imported:
            self.defined.setdefault(name, node)


def _says_nothing(node):
    """A docstring, or what a module exports."""
    if isinstance(node, ast.AugAssign):
        return getattr(node.target, "id", None) == "__all__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _module(file):
    _consulted.add(file)
    return _parsed(file, _changed(file))


@cache
def _parsed(file, changed):
    return _Module(file)


def _definition(file, name):
    """(file, name) of where this repository defines what `file` calls `name`; None elsewhere."""
    module = _module(file)
    if name in module.defined:
        return file, name
    if not isinstance(module.imported.get(name), tuple):
        return None
    node, original = module.imported[name]
    source = _imported_from(file, node)
    return _definition(source, original) if source else None


def _origin(file, name):
    """Where other people define what `file` calls `name`, also if another file handed it on."""
    imported = _module(file).imported.get(name)
    if not isinstance(imported, tuple):
        return imported or name
    node, original = imported
    source = _imported_from(file, node)
    if source:
        return _origin(source, original)
    return (
        original if (node.module or "").startswith("rwkv_lessons") else f"{node.module}.{original}"
    )


def _imported_from(file, node):
    """The file that `from … import` names, if it is of this repository, and not of the lab."""
    if node.level:
        folder = (ROOT / file).parents[node.level - 1].joinpath(*(node.module or "").split("."))
    elif node.module.split(".")[0] == "rwkv_lessons":
        folder = ROOT.joinpath(*node.module.split("."))
    else:  # an installed library stands beside torch, in ROOT as well
        return None
    for module in (folder.with_suffix(".py"), folder / "__init__.py"):
        ours = module.is_file() and module.is_relative_to(ROOT)
        if ours and not module.is_relative_to(ROOT / "rwkv_lessons" / "lab"):
            return module.relative_to(ROOT).as_posix()
    return None


def _imported_module(file, name):
    """The file of a module of this repository that `file` imports as `name`, or None."""
    node = _module(file).imported.get(name)
    if not isinstance(node, tuple):
        return None
    node, original = node
    inner = ast.ImportFrom(".".join(filter(None, (node.module, original))), [], node.level)
    return _imported_from(file, inner) if node.level or node.module else None


def _place(key):
    """What stands in a text for another definition, until that has a number."""
    return "\0{}::{}\0".format(*key)


class _Text:
    """A definition as text, in which its own names are numbers, and others' are their places."""

    def __init__(self, file, decorators):
        self.file, self.own, self.decorators = file, {}, decorators
        self.bound, self.imported = frozenset(), {}

    def of(self, node):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return self._text(node.value)
        bound = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                bound.add(n.id)
            elif isinstance(n, DEFINITIONS) and n is not node:
                bound.add(n.name)
            elif isinstance(n, ast.ImportFrom):
                self._follow(n)
        if isinstance(node, ast.ClassDef):  # its fields and methods are known by their names
            bound -= {n.name for n in node.body if isinstance(n, DEFINITIONS)}
            fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            bound -= {n.id for n in fields if isinstance(n, ast.Name)}
        self.bound = bound
        return self._text(node)

    def _follow(self, node):
        """Notes what a function imports for itself, if it is of this repository."""
        for x in node.names:
            source = _imported_from(self.file, node)
            if key := source and _definition(source, x.name):
                self.imported[x.asname or x.name] = key

    def _text(self, node):
        if isinstance(node, list):
            return "[" + ", ".join(map(self._text, node)) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if module := self._module_named(node.value.id):
                if key := _definition(module, node.attr):
                    return f"@{_place(key)}"
        if isinstance(node, ast.Raise):
            return "Raise()"
        if isinstance(node, ast.ImportFrom | ast.Import):
            return "Import()"
        fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        if isinstance(node, DEFINITIONS):
            fields["name"] = self._name(node.name) if node.name in self.bound else ""
            if ast.get_docstring(node) is not None:
                fields["body"] = node.body[1:]
            if not self.decorators:
                fields["decorator_list"] = [d for d in node.decorator_list if not self._is_ours(d)]
        if isinstance(node, ast.arg):
            fields["arg"] = ast.Name(node.arg)
        inside = ", ".join(f"{name}={self._text(value)}" for name, value in fields.items())
        return f"{type(node).__name__}({inside})"

    def _is_ours(self, decorator):
        return isinstance(decorator, ast.Name) and _definition(self.file, decorator.id) is not None

    def _module_named(self, name):
        return None if name in self.bound else _imported_module(self.file, name)

    def _name(self, name):
        if name in self.bound:
            return f"%{self.own.setdefault(name, len(self.own))}"
        if key := self.imported.get(name) or _definition(self.file, name):
            return f"@{_place(key)}"
        if module := _imported_module(self.file, name):  # handed on as it is: all of it may be used
            places = ", ".join(_place((module, x)) for x in _module(module).defined)
            return f"[{places}]"
        return _origin(self.file, name)
