"""Functions of other people's modules, replaced by name, and restored."""

import functools
import sys
from types import ModuleType


class StandIn:
    """Calls our function while its patch stands, and theirs afterwards, whoever holds it by then.

    Modules that are imported meanwhile take it, and give it any name.
    """

    def __init__(self, ours, theirs):
        functools.update_wrapper(self, ours)
        self.ours, self.theirs, self.stands = ours, theirs, True

    def __call__(self, *given, **named):
        return (self.ours if self.stands else self.theirs)(*given, **named)


class Patch:
    """Replaces functions when it is made; `undo()`, or the end of a `with` block, restores them."""

    def __init__(self, replacements):
        """
        Args:
            replacements: (module, name, function) of each; what is in place already is left alone.
        """
        self.replaced, made = [], {}
        for module, name, ours in replacements:
            theirs = getattr(module, name)
            if isinstance(theirs, StandIn):
                if theirs.stands:
                    continue
                theirs = theirs.theirs  # of a patch that was undone
            if theirs is not ours:
                stand_in = made.setdefault((theirs, ours), StandIn(ours, theirs))
                setattr(module, name, stand_in)
                self.replaced.append((module, name, stand_in))

    def undo(self):
        """Puts the original functions back where ours still are; a second time does nothing."""
        for module, name, stand_in in self.replaced:
            stand_in.stands = False
            if getattr(module, name) is stand_in:
                setattr(module, name, stand_in.theirs)
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
    found = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == package]
    return [m for m in found if isinstance(m, ModuleType)]
