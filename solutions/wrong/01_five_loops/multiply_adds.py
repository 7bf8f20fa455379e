"""Counts a multiplication with its addition as one: those are instructions, not operations."""


def flops(B, T, H, N):
    return 4 * B * T * H * N * N
