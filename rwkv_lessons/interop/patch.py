"""Functions of other people's modules, replaced by name, and restored."""

import functools
import importlib
import sys
from types import ModuleType


class StandIn:
    """Calls our function while a patch holds it, and theirs afterwards, whoever has it by then.

    Modules that are imported meanwhile take it, and give it any name. It is pickled and copied as
    functions are, by the name that it stands under: another process finds there what it has.
    """

    def __init__(self, replacement, original):
        functools.update_wrapper(self, replacement)
        self.replacement, self.original = replacement, original
        self.places, self.patches = [], []  # (module, name) of each; patches that were not undone

    @property
    def stands(self):
        return bool(self.patches)

    def __call__(self, *args, **named):
        return (self.replacement if self.stands else self.original)(*args, **named)

    def __reduce__(self):
        module, name = self.places[0]
        return _look_up, (module.__name__, name)

    def take(self, patch, place):
        """Stands at a place from now on, until its last patch is undone."""
        if patch not in self.patches:
            self.patches.append(patch)
        if place not in self.places:
            self.places.append(place)
            setattr(*place, self)

    def leave(self, patch):
        """Puts the original back wherever this stands, if no other patch holds it."""
        if patch in self.patches:
            self.patches.remove(patch)
            for module, name in self.places if not self.patches else []:
                if getattr(module, name) is self:
                    setattr(module, name, self.original)


class Patch:
    """Replaces functions when it is made; `undo()`, or the end of a `with` block, restores them.

    Of several patches of one function each holds it: the last to be undone restores it.
    """

    def __init__(self, replacements):
        """
        Args:
            replacements: (module, name, function) of each.
        """
        self.replaced, stand_ins = [], {}
        for module, name, replacement in replacements:
            original = getattr(module, name)
            while isinstance(original, StandIn) and not original.stands:
                original = original.original  # of a patch that was undone
            if original is replacement:
                continue
            if isinstance(original, StandIn) and original.replacement is replacement:
                stand_in = original
            else:
                stand_in = stand_ins.setdefault(
                    (original, replacement), StandIn(replacement, original)
                )
            stand_in.take(self, (module, name))
            self.replaced.append((module, name, stand_in))

    def undo(self):
        """Restores what no other patch holds; a second time does nothing."""
        for _, _, stand_in in self.replaced:
            stand_in.leave(self)
        self.replaced = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()

    def __repr__(self):
        names = ", ".join(f"{module.__name__}.{name}" for module, name, _ in self.replaced)
        return f"<Patch of {names or 'nothing'}>"


def modules_of(package):
    """The modules of a package that are imported by now, by name."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == package]
    return [m for m in modules if isinstance(m, ModuleType)]


def _look_up(module, name):
    return getattr(importlib.import_module(module), name)
