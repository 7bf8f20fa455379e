"""Functions of other people's modules, replaced by name, and restored."""

import sys
from types import ModuleType


class Patch:
    """Replaces functions when it is made; `undo()`, or the end of a `with` block, restores them."""

    def __init__(self, replacements, package=None):
        """
        Args:
            replacements: (module, name, function) of each; what is in place already is left alone.
            package: a package whose modules may be imported while the patch is in place, and then
                hold its functions by name; `undo()` gives them the original that stands first.
        """
        self.replaced, self.package = [], package
        for module, name, ours in replacements:
            if getattr(module, name) is not ours:
                self.replaced.append((module, name, getattr(module, name), ours))
                setattr(module, name, ours)

    def undo(self):
        """Puts the original functions back where ours still are; a second time does nothing."""
        for module, name, original, ours in self.replaced:
            if getattr(module, name) is ours:
                setattr(module, name, original)
        for _, name, original, ours in self.replaced:
            for module in modules_of(self.package):
                if vars(module).get(name) is ours:
                    setattr(module, name, original)
        self.replaced = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()

    def __repr__(self):
        names = ", ".join(f"{module.__name__}.{name}" for module, name, *_ in self.replaced)
        return f"<Patch of {names or 'nothing'}>"


def modules_of(package):
    """The modules of a package that are imported by now, by name."""
    found = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == package]
    return [m for m in found if isinstance(m, ModuleType)]
