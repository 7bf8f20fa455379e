"""A module of the library whose Gluon kernel runs on the CPU, with mistakes on demand."""

import inspect

from rwkv_lessons.lab.machine_code.cubin import plain
from rwkv_lessons.lab.simulator.gluon import OnCPU


class Mutable(OnCPU):
    """A kernel that can be given a mistake."""

    def mistake(self, old, new):
        """From now on `new` stands in the kernel's source where `old` stood."""
        function = plain(self.kernel)
        source = inspect.getsource(function)
        assert source.count(old) == 1
        known = dict(function.__globals__)
        exec(source[source.index("def ") :].replace(old, new), known)
        self.kernel = known[function.__name__]


def on_cpu(monkeypatch, module, name):
    """Has a module of the library launch its kernel `name` here, however few tokens there are."""

    def launch(kernel, grid, num_warps, tensors, numbers, constants, **for_the_compiler):
        kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)

    kernel = Mutable(getattr(module, name))
    monkeypatch.setattr(module, name, kernel)
    monkeypatch.setattr(module, "launch_tiles", launch)
    monkeypatch.setattr(module, "suits_hopper", lambda *_: True)
    monkeypatch.setattr(module, "MIN_TOKENS_FOR_TMA", 0)
    return kernel
