"""Gives a warp exactly the registers it asks for; the hardware hands them out 256 at a time."""


def resident_warps(registers, block):
    warps = block // 32
    fitting = 4 * min(16384 // (registers * 32), 16)
    return min(fitting // warps, 32) * warps
