"""What can go wrong when a kernel runs, each with the place in the source and the thread."""

import linecache
import traceback

STILL = "still looping"  # the words of an `EndlessLoop`


REWORDED = {
    "range() arg 3 must not be zero": "the step of a loop is 0: a size that it is computed from, "
    "by // say, is smaller here than it expects",
}


def in_words(error):
    """What an exception of Python says of a kernel, in its first line."""
    message = (str(error).strip().splitlines() or [""])[0]
    message = REWORDED.get(message, message)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class Place:
    """A line of a kernel; prints as ``line 12: y[i] = x[i]``, the same in every session."""

    file: str
    function: str
    line: int
    text: str

    def __init__(self, code, line):
        self.file, self.function, self.line = code.co_filename, code.co_name, line
        self.text = linecache.getline(self.file, line).strip()

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.text else f"line {self.line}"


def place_of(error, is_own):
    """The innermost line, of code that `is_own(code)`, that an exception went through.

    A second exception can take the first one's place while that unwinds: a limit's, say, which is
    raised until it is heard. Where the second went through no such line, the first one's counts.
    """
    while error is not None:
        steps = traceback.walk_tb(error.__traceback__)
        if own := [Place(f.f_code, line) for f, line in steps if is_own(f.f_code)]:
            return own[-1]
        error = error.__context__
    return None


class KernelFault(Exception):
    """A kernel did something a GPU would not survive, or would survive with a wrong answer.

    Attributes:
        what: the fault in one sentence.
        place: the `Place` in the source, or None.
        block, thread: `(x, y, z)` of the thread that faulted, or None.
        array, index: the array's name and the index, where the fault is about one.
    """

    what: str
    place: Place | None

    def __init__(self, what, place=None, block=None, thread=None, array=None, index=None):
        self.what, self.place, self.block, self.thread = what, place, block, thread
        self.array, self.index = array, index
        where = [str(place)] if place else []
        if thread is not None:
            where.append(f"block {block}, thread {thread}")
        super().__init__("\n  ".join([what, *where]))

    @property
    def line(self) -> int | None:
        return self.place.line if self.place else None


class OutOfBounds(KernelFault, IndexError):
    """An index is negative, or not below the size of its dimension.

    Attributes:
        symptom: "origin" if all lanes of a program are outside, which no mask would mend.
    """

    symptom = None


class DivergentBarrier(KernelFault):
    """Some threads wait at a barrier that others will never reach."""


class UninitialisedRead(KernelFault):
    """Shared or local memory is read before anything was written to it; `space` says which."""

    space = "shared"


class MisalignedAccess(KernelFault):
    """A 16-byte access at an address that is not a multiple of 16."""


class TooMuchShared(KernelFault):
    """The shared arrays do not fit a block: the kernel does not compile, or its launch fails."""


class WrongType(KernelFault):
    """An operation does not take numbers of this type: the kernel does not compile for them."""


class EndlessLoop(KernelFault):
    """A loop that does not come to its end, in far more rounds or time than its input asks for."""


class Unsupported(KernelFault, NotImplementedError):
    """Not the kernel's fault: it uses what a GPU has and the simulator has not."""
