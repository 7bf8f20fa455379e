"""w_v is applied to every token in both ways."""


def value_flops(rows, N, R, V):
    early = 2 * N * R * V + 2 * rows * N * V
    late = 2 * rows * N * R + 2 * N * R * V
    return early, late
