"""Which instruction of a function's bytecode a frame is at."""

import bisect
import dis

_starts = {}


def instruction(frame):
    """A name for the instruction `frame` executes, the same every time it executes it.

    `f_lasti` alone is not: once CPython has specialised a call, it points into the instruction's
    inline cache.
    """
    code = frame.f_code
    if id(code) not in _starts:  # the entry keeps the code object, and so its id, alive
        _starts[id(code)] = code, [step.offset for step in dis.get_instructions(code)]
    starts = _starts[id(code)][1]
    return id(code), starts[bisect.bisect_right(starts, frame.f_lasti) - 1]


def assigned_name(frame):
    """The name on the left of `s = cuda.shared.array(…)`: that of the next store."""
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti and step.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            return step.argval if isinstance(step.argval, str) else step.argval[0]
    return None
