"""A seed on a command line."""

import argparse

MOST = 10**12  # a seed for each step or sequence, made of it, is one that torch takes


def as_seed(text):
    """A `type` for `argparse`: an integer from 0 to `MOST`."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: needs an integer from 0 to {MOST}")
    return number
