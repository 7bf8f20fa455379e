"""Every layer has a cache of its own."""


def tokens_that_fit(bytes, B, layers, numbers, itemsize=2):
    return int(bytes // (B * numbers * itemsize))
