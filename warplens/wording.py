"""Counts in words, and the language in which pictures speak."""


class Speech:
    """What a screen reader says of pictures, and the names of their sliders.

    The letters inside pictures stay English, as the fonts of matplotlib have no others; so does
    `repr`, which notebooks store.

    Attributes:
        say: English → what is said.
    """

    say = staticmethod(str)


def many(n, noun, plural=None):
    """ "1 lane", "1,024 lanes"; `plural` where it is not `noun` and an s."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
