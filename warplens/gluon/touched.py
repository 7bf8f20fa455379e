"""How often a launch reads and writes each element of its tensors."""

import torch


class Touched:
    """Counts by element, of each tensor and kind of access."""

    def __init__(self):
        self.counts = {}

    def note(self, memory, op, at):
        """Elements `at` of a tensor's flat memory are read ("load") or written ("store")."""
        new = torch.bincount(at.reshape(-1), minlength=memory.numel())
        key = memory.data_ptr(), op
        self.counts[key] = self.counts[key] + new if key in self.counts else new

    def named(self, arguments):
        """[(name, shape, strides, op, counts)] of those `arguments` that were touched."""
        rows = []
        for name, x in arguments.items():
            tensor = getattr(x, "base", x)
            if not isinstance(tensor, torch.Tensor):
                continue
            strides = x.strides if tensor is not x else x.stride()
            for op in ("load", "store"):
                if (counts := self.counts.get((tensor.data_ptr(), op))) is not None:
                    rows.append((name, tuple(x.shape), tuple(strides), op, counts.numpy()))
        return rows
