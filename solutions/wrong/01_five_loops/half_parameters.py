"""Takes decay and u to be as narrow as r, k and v."""


def least_bytes(B, T, H, N, itemsize):
    return (4 * B * T * H * N + 2 * H * N) * itemsize
