"""What a learner's kernel calls its parameters: any names do, in the solution's order."""

import inspect

from warplens.compiled.cubin import plain


class WrongSignature(Exception):
    """The function is no Triton kernel, or takes other parameters than it is launched with."""


def parameter_names(kernel, reference):
    """{a parameter of the solution: the learner's name for it}, where they differ.

    Parameters that have the solution's names may stand in any order; the others are taken in order.

    Args:
        reference: the solution, or None: then the names are the kernel's own.

    Raises:
        WrongSignature: it takes fewer or more, or has no @triton.jit.
    """
    if inspect.isfunction(kernel):
        raise WrongSignature(f"{kernel.__name__} is a plain function: @triton.jit is missing")
    if not type(kernel).__module__.startswith("triton."):
        raise WrongSignature(f"a {type(kernel).__name__}, not what @triton.jit makes of a function")
    if reference is None:
        return {}
    want = list(inspect.signature(plain(reference)).parameters)
    given = inspect.signature(plain(kernel)).parameters
    ours, theirs = [x for x in want if x not in given], [x for x in given if x not in want]
    needed = [x for x in theirs if given[x].default is inspect.Parameter.empty]
    if len(ours) != len(theirs) and (ours or needed):
        lines = [f"takes {len(given)} parameters and is launched with {len(want)}"]
        lines += [f"missing: {', '.join(ours)}"] if ours else []
        lines += [f"not among those given: {', '.join(needed)}"] if needed else []
        raise WrongSignature("\n".join(lines))
    return dict(zip(ours, theirs, strict=False))
