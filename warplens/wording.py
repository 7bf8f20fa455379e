"""Counts in words."""


def many(n, what, plural=None):
    """ "1 lane", "1,024 lanes"; `plural` where it is not `what` and an s."""
    return f"{n:,} {what if n == 1 else plural or what + 's'}"
