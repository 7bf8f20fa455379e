"""What a command says of a wrong argument, an interrupt, a closed pipe: a line, no traceback."""

import argparse
import math
import os
import signal
import sys
from pathlib import Path


class WrongArgument(ValueError):
    """A value on a command line of which the parser cannot say that it is wrong."""


def at_least(least, kind=int, most=math.inf):
    """A `type` for `argparse`: an int, or a finite float, that is `least` to `most`."""
    article = "an integer" if kind is int else "a number"
    limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"

    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not (least <= number <= most and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"{text!r}: needs {article} {limits}")
        return number

    return parse


# A seed for each step or sequence, made of it, is still one that torch takes.
as_seed = at_least(0, most=10**12)


def writable(text):
    """A `type` for `argparse`: a file in a folder that can be written, or - for no file."""
    folder = Path(text).absolute().parent
    if text != "-" and not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: {folder} is not a writable folder")
    return text


def run(main, name):
    """The exit status of `main()`; `name` stands before the line that tells of an interrupt.

    Ctrl-C, and a reader that closes the pipe, as `| head -1` does, end a command with the status
    that a shell gives a program that they end. What a command's KeyboardInterrupt says is printed.
    A character that the terminal's encoding does not have becomes a question mark.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's has not
            stream.reconfigure(errors="replace")
    try:
        status = main()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as interrupt:
        print("; ".join([f"{name}: interrupted", *interrupt.args]), file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is flushed again
        return 128 + 13  # SIGPIPE, a name that Windows does not have
