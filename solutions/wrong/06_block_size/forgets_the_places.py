"""Counts registers only: an SM has no more than 64 places for warps and 32 for blocks."""


def resident_warps(registers, block):
    warps = block // 32
    return 65536 // (registers * 32) // warps * warps
