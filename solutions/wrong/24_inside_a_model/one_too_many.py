"""Rounded up: the last token does not fit."""


def tokens_that_fit(bytes, B, layers, numbers, itemsize=2):
    return -int(-bytes // (B * layers * numbers * itemsize))
