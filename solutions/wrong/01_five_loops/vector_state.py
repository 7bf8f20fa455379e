"""Takes the state for a vector of N numbers: it is a matrix."""


def flops(B, T, H, N):
    return 7 * B * T * H * N
