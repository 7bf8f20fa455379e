"""Functions of other people's modules, replaced by name, and the way back."""


class Patch:
    """Replaces functions when it is made; `undo()`, or the end of a `with` block, restores them."""

    def __init__(self, replacements):
        """
        Args:
            replacements: (module, name, function) of each; what is in place already is left alone.
        """
        self.replaced = []
        for module, name, ours in replacements:
            if getattr(module, name) is not ours:
                self.replaced.append((module, name, getattr(module, name), ours))
                setattr(module, name, ours)

    def undo(self):
        """Puts the original functions back where ours still are; a second time does nothing."""
        for module, name, original, ours in self.replaced:
            if getattr(module, name) is ours:
                setattr(module, name, original)
        self.replaced = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()

    def __repr__(self):
        names = ", ".join(f"{module.__name__}.{name}" for module, name, *_ in self.replaced)
        return f"<Patch of {names or 'nothing'}>"
