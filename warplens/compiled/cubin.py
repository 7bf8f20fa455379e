"""What the two ways from a kernel to a cubin share: the result, the error, other constants."""

import dis
import functools
import inspect
import linecache
import types
from dataclasses import dataclass


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


class CompileError(Exception):
    """The kernel does not compile; the message is the first useful line and the source line."""


@dataclass(frozen=True)
class Cubin:
    """Machine code, the PTX it came from, what ptxas -v said, and shared bytes it cannot know.

    Attributes:
        ttgir: Triton's program with the layouts of its tensors; None from numba.
        file: the file that its line information names, if the code was compiled for another copy
            of the same source.
    """

    code: bytes
    ptx: str
    log: str
    launch_shared: int = 0
    file: str | None = None
    ttgir: str | None = None


def refuse(function, why, line=None):
    """The CompileError for `function`: why, and the source line where it is known."""
    message = f"{function.__name__} does not compile: {why}"
    if line:
        source = linecache.getline(function.__code__.co_filename, line).strip()
        message += f"\n    line {line}: {source}"
    return CompileError(message)


def named(function):
    """The global and closed-over values that a function's code names."""
    names = {n: function.__globals__[n] for n in _names(function) if n in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return names | {name: cell.cell_contents for name, cell in cells}


def _names(function):
    """Of globals; an attribute such as `load` of `tl.load` may be called as some other global."""
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(_global_names(code))
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return sorted(names)


@functools.lru_cache(1024)
def _global_names(code):
    return {i.argval for i in dis.get_instructions(code) if i.opname in LOADS}


LOADS = "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"


def rebuild(function, constants, convert, done=None):
    """A copy of `function` that sees other constants, as do the kernels' functions that it calls.

    Args:
        constants: {global or closed-over name: value}; names that no code uses are ignored.
        convert: called with (value, copy) for each value that `is_kernel_function`; returns what
            takes the value's place. `copy` is the rebuilt plain function.
    """
    done = {} if done is None else done
    if function in done:
        return done[function]
    values = named(function)
    values |= {n: _like(old, constants[n]) for n, old in values.items() if n in constants}
    cells = {name: types.CellType(values[name]) for name in function.__code__.co_freevars}
    copy = types.FunctionType(
        function.__code__,
        function.__globals__ | {n: v for n, v in values.items() if n not in cells},
        function.__name__,
        function.__defaults__,
        tuple(cells.values()),
    )
    for attribute in ("__module__", "__qualname__", "__annotations__", "__kwdefaults__"):
        setattr(copy, attribute, getattr(function, attribute))
    done[function] = copy
    for name, value in values.items():
        if is_kernel_function(value):
            value = convert(value, rebuild(plain(value), constants, convert, done))
            if name in cells:
                cells[name].cell_contents = value
            else:
                copy.__globals__[name] = value
    return copy


def _like(old, new):
    """Triton reads a global only if it is a constexpr, so the new value has to be one as well."""
    return type(old)(new) if type(old).__name__ == "constexpr" else new


def is_kernel_function(value):
    """Whether `value` is a function decorated by numba.cuda or Triton, outside their own code."""
    kinds = ("numba.cuda.dispatcher", "triton.runtime", "triton.experimental.gluon._runtime")
    own = type(value).__module__.startswith(kinds)
    return own and not getattr(plain(value), "__module__", "").startswith("triton.")


def dependencies(function, seen=()):
    """What a compiled kernel depends on: its code, and the values and functions that it names."""
    parts = [function.__code__]
    for name, value in named(function).items():
        if is_kernel_function(value):
            if (inner := plain(value)) not in seen:
                parts.append((name, dependencies(inner, (*seen, function))))
        elif not isinstance(value, types.ModuleType):
            parts.append((name, repr(value)))
    return tuple(parts)
