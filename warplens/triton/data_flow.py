"""Whether the addresses, masks and branches of a Triton kernel depend on what it reads from memory.

Where they do not, one run decides every input of the same shape: all of its programs access the
same elements, whatever the tensors hold. A number is `known` if program numbers, ranges, constants,
scalar arguments, sizes and strides give it. What is not seen to be known counts as read.
"""

import contextlib

READS = (
    "load masked_load atomic_rmw atomic_cas tensor_pointer_load descriptor_load descriptor_gather"
)
# Which arguments of an access say where it goes.
WHERE = {
    "load": (0,),
    "store": (0,),
    "masked_load": (0, 1),
    "masked_store": (0, 2),
    "atomic_rmw": (1, 3),
    "atomic_cas": (0,),
    "tensor_pointer_load": (0,),
    "tensor_pointer_store": (0,),
    "descriptor_load": (0, 1),
    "descriptor_store": (0, 2),
    "descriptor_gather": (0, 1, 2),
    "descriptor_scatter": (0, 2, 3),
}


class DataFlow:
    """Follows numbers through a launch.

    Attributes:
        depends: the first `Place` at which an address, a mask or a branch depends on values that
            the kernel read; None if there is none.
    """

    def __init__(self, place):
        self.place, self.depends, self.outer = place, None, None

    @contextlib.contextmanager
    def followed(self, builder):
        """While it lasts, the operations of Triton's interpreter say what is known."""
        import triton.language as tl

        names = [x for x in dir(builder) if x.startswith(("create_", "get_"))]
        names = [x for x in names if not x.endswith("_ty") and callable(getattr(builder, x))]
        before = {name: vars(builder).get(name) for name in names}
        branches = {name: getattr(tl.tensor, name) for name in ("__bool__", "__index__")}
        for name in names:
            setattr(builder, name, self._operation(name, getattr(builder, name)))
        for name, own in branches.items():
            setattr(tl.tensor, name, self._branch(own))
        try:
            yield
        finally:
            for name, own in branches.items():
                setattr(tl.tensor, name, own)
            for name, own in before.items():
                delattr(builder, name) if own is None else setattr(builder, name, own)

    def _operation(self, name, own):
        name = name.removeprefix("create_")

        def operation(*args, **named):
            if self.outer:  # a part of another operation
                if name in WHERE and self.outer not in WHERE:
                    self._note()
                return own(*args, **named)
            if not all(is_known(args[n]) for n in WHERE.get(name, ()) if n < len(args)):
                self._note()
            self.outer = name
            try:
                result = own(*args, **named)
            finally:
                self.outer = None
            if name not in READS.split() and is_known((args, tuple(named.values()))):
                mark(result)
            return result

        return operation

    def _branch(self, own):
        def branch(tensor):
            if not is_known(tensor.handle):
                self._note()
            return own(tensor)

        return branch

    def _note(self):
        self.depends = self.depends or self.place()


def is_known(x):
    """Whether no number of a handle of the interpreter, or of several, was read from memory."""
    if isinstance(x, list | tuple):
        return all(map(is_known, x))
    if hasattr(x, "strides") and hasattr(x, "base"):  # a block pointer or a descriptor
        return is_known((x.base, x.shape, x.strides, getattr(x, "offsets", ())))
    return not hasattr(x, "data") or not hasattr(x, "dtype") or getattr(x, "known", False)


def mark(x):
    """Says of a handle, or of several, that it is known."""
    for handle in x if isinstance(x, list | tuple) else [x]:
        if hasattr(handle, "data") and hasattr(handle, "dtype"):
            handle.known = True
        elif hasattr(handle, "offsets"):  # of a block pointer that was moved on
            mark(handle.offsets)
