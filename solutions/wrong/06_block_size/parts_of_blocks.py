"""Lets a part of a block move in: a block is on an SM whole or not at all."""


def resident_warps(registers, block):
    per_warp = (registers * 32 + 255) // 256 * 256
    return min(4 * (16384 // per_warp), 64, 32 * (block // 32))
