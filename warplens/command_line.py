"""What a command says of a wrong argument, an interrupt, a closed pipe: a line, no traceback."""

import argparse
import math
import os
import signal
import sys


def at_least(least):
    """A `type` for `argparse`: an integer that is `least` or more."""

    def parse(text):
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: needs an integer of at least {least}")
        return number

    return parse


def seconds(text):
    """A number of seconds above 0, or a ValueError: a `type` for `argparse`."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


def run(main, name):
    """The exit status of `main()`; Ctrl-C and a closed pipe end it as a shell's own programs."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is flushed again
        return 128 + 13  # SIGPIPE, a name that Windows does not have
