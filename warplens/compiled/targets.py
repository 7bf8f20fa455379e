"""Packages whose kernels are compiled for a target of their own, and trusted not to crash LLVM."""

# {package: function from Triton's target to its own}. Others' kernels get a process of their own.
OWN = {}


def own_target(kernel):
    """The function of the package that a plain function belongs to, or None."""
    return OWN.get(kernel.__module__.partition(".")[0])
