"""The plain functions of a kernel: what they name, and copies of them that see something else.

Everything here that runs a kernel, or compiles it with other constants, does so with a `Rebinder`.
"""

import dis
import functools
import inspect
import types


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


def named(function):
    """The global and closed-over values that a function's code names."""
    scope = function.__globals__
    values = {n: scope[n] for n in sorted(global_names(function.__code__)) if n in scope}
    return values | _closed_over(function)


def _closed_over(function):
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != EMPTY}


def global_names(code):
    """Those that it loads, and the functions in it; not an attribute such as `load` of `tl.load`.

    They may be names of Python's own, such as `range`.
    """
    return set().union(*map(_loaded, codes_in(code)))


def codes_in(code):
    """A function's code and that of the functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


@functools.lru_cache(1024)
def _loaded(code):
    return {i.argval for i in dis.get_instructions(code) if i.opname in LOADS}


LOADS = "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"
EMPTY = types.CellType()  # of a name that its function has not assigned


class Rebinder:
    """Makes copies of functions that see other values under the names of globals and closures.

    Each function is copied once, so that functions may call themselves and each other.

    Args:
        replace: (name, value) → what a copy sees. It may call the rebinder for a function.
        code_of: function → the code of its copy, which may name other globals.
        added: {name: value} for names that the code has and the function's module has not.
    """

    def __init__(self, replace, code_of=lambda function: function.__code__, added=()):
        self.replace, self.code_of, self.added = replace, code_of, dict(added)
        self.copies = {}

    def __call__(self, function):
        if function in self.copies:
            return self.copies[function]
        code = self.code_of(function)
        cells = {name: types.CellType() for name in code.co_freevars}
        scope = dict(function.__globals__)
        copy = types.FunctionType(
            code, scope, function.__name__, function.__defaults__, tuple(cells.values())
        )
        for attribute in ("__module__", "__qualname__", "__annotations__", "__kwdefaults__"):
            setattr(copy, attribute, getattr(function, attribute))
        self.copies[function] = copy
        for name, value in _closed_over(function).items():
            cells[name].cell_contents = self.replace(name, value)
        names = global_names(code)
        for name in sorted(names & scope.keys()):
            scope[name] = self.replace(name, scope[name])
        for name in (names & self.added.keys()) - scope.keys():
            scope[name] = self.added[name]
        return copy


def with_values(function, values):
    """A copy of a function that sees `values`, {name: value}, under the names that it uses."""
    return Rebinder(lambda name, value: values.get(name, value), added=values)(function)


def rebuild(function, constants, convert):
    """A copy of `function` that sees other constants, as do the kernels' functions that it calls.

    Args:
        constants: {global or closed-over name: value}; names that no code uses are ignored.
        convert: called with (value, copy) for each value that `is_kernel_function`; returns what
            takes the value's place. `copy` is the rebuilt plain function.
    """

    def replace(name, value):
        if name in constants:
            value = _like(value, constants[name])
        return convert(value, rebind(plain(value))) if is_kernel_function(value) else value

    rebind = Rebinder(replace)
    return rebind(function)


def _like(old, new):
    """Triton reads a global only if it is a constexpr, so the new value has to be one as well."""
    return type(old)(new) if type(old).__name__ == "constexpr" else new


def is_kernel_function(value):
    """Whether `value` is a function decorated by numba.cuda or Triton, outside their own code."""
    kinds = ("numba.cuda.dispatcher", "triton.runtime", "triton.experimental.gluon._runtime")
    own = type(value).__module__.startswith(kinds)
    return own and not getattr(plain(value), "__module__", "").startswith("triton.")


def dependencies(function, visited=()):
    """What a compiled kernel depends on: its code, and the values and functions that it names."""
    parts = [function.__code__]
    for name, value in named(function).items():
        if is_kernel_function(value):
            if (inner := plain(value)) not in visited:
                parts.append((name, dependencies(inner, (*visited, function))))
        elif not isinstance(value, types.ModuleType):
            parts.append((name, repr(value)))
    return tuple(parts)
