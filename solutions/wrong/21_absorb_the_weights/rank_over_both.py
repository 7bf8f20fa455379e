"""The products are added where they should be subtracted."""


def break_even(R, V):
    return V / (1 + V / R)
