"""Counts registers only: an SM has no more than 64 places for warps and 32 for blocks."""


def resident_warps(registers, block):
    warps = block // 32
    per_warp = (registers * 32 + 255) // 256 * 256
    return 4 * (16384 // per_warp) // warps * warps
