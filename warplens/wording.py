"""Counts in words."""


def many(n, noun, plural=None):
    """ "1 lane", "1,024 lanes"; `plural` where it is not `noun` and an s."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
