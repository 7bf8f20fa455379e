"""A module of the library whose Gluon kernel runs on the CPU, with mistakes on demand."""

import inspect
import types

from warplens.compiled.functions import named, plain
from warplens.gluon import OnCPU
from warplens.gluon.run import watch


class Mutable(OnCPU):
    """A kernel that can be given a mistake."""

    def mistake(self, old, new, inside=None):
        """From now on `new` stands where `old` stood, in the kernel or what it calls `inside`."""
        kernel = plain(self.kernel)
        self.kernel = changed(kernel, inside or kernel.__name__, old, new)


def changed(function, name, old, new):
    """`function` with this edit: in itself, or in all that it calls by that name; or None."""
    names = dict(function.__globals__)
    if function.__name__ == name:
        source = inspect.getsource(function)
        assert source.count(old) == 1
        exec(source[source.index("def ") :].replace(old, new), names)
        return names[name]
    called = {key: value for key, value in named(function).items() if hasattr(value, "fn")}
    edits = {key: changed(plain(value), name, old, new) for key, value in called.items()}
    edits = {key: types.SimpleNamespace(fn=edited) for key, edited in edits.items() if edited}
    if not edits:
        return None
    return types.FunctionType(function.__code__, names | edits, None, function.__defaults__)


def on_cpu(monkeypatch, module, name):
    """Has a module of the library launch its kernel `name` here, however few tokens there are."""

    def launch(kernel, grid, num_warps, tensors, numbers, constants, **for_the_compiler):
        kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)

    kernel = Mutable(getattr(module, name))
    monkeypatch.setattr(module, name, kernel)
    monkeypatch.setattr(module, "launch_tiles", launch)
    monkeypatch.setattr(module, "takes_tiles", lambda *_: True)
    return kernel


def faults(monkeypatch, module, reverse=False):
    """A list that gets what the simulator finds in each launch of a module.

    reverse: the other order of roles.
    """
    every_fault = []

    def launch(kernel, grid, num_warps, tensors, numbers, constants, **for_the_compiler):
        parameters = inspect.signature(plain(kernel.kernel)).parameters
        named = dict(zip(parameters, (*tensors, *numbers, *constants), strict=True))
        every_fault.extend(watch(kernel.kernel, grid, named, reverse=reverse).faults)

    monkeypatch.setattr(module, "launch_tiles", launch)
    return every_fault
