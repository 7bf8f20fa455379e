"""The values are made anew for every row."""


def value_flops(rows, N, R, V):
    early = 2 * rows * N * R * V + 2 * rows * N * V
    late = 2 * rows * N * R + 2 * rows * R * V
    return early, late


def break_even(R, V):
    return R / V
