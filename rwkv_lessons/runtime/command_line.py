"""Numbers on a command line: a wrong one is told in a line, with the argument's name."""

import argparse
import math
import os
from pathlib import Path


def at_least(least, kind=int):
    """A `type` for `argparse`: an int, or a finite float, that is `least` or more."""
    article = "an integer" if kind is int else "a number"

    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= least):
            raise argparse.ArgumentTypeError(f"{text!r}: needs {article} of at least {least}")
        return number

    return parse


def writable(text):
    """A `type` for `argparse`: a file in a folder that can be written, or - for no file."""
    folder = Path(text).absolute().parent
    if text != "-" and not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: {folder} is no folder that can be written")
    return text
