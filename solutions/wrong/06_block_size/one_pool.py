"""Takes the SM's registers for one pool: they are four, and a warp lives in one of them."""


def resident_warps(registers, block):
    warps = block // 32
    per_warp = (registers * 32 + 255) // 256 * 256
    fitting = min(65536 // per_warp, 64)
    return min(fitting // warps, 32) * warps
