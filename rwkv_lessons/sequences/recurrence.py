"""How the recurrent forward kernels, of any operation, are cut into programs."""

import triton

from ..runtime.bounded import remembered

TILE = 1024  # elements of the state a warp holds: 32 registers a thread
STAGES = 4  # of the loop over tokens: loads in flight
SCHEDULERS_PER_SM = 4  # of an SM: a warp for each fills it


@remembered
def tile_for(heads, T, K, V, sms):
    """How many programs, their warps, K, V, BK and BV, and stages of the loop."""
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    if T == 1 and heads >= sms:  # bound by memory: large programs, many loads at once
        BV, warps = min(BV, max(4, 4 * TILE // BK)), 4
    else:
        BV, warps = min(BV, max(4, TILE // BK)), 1
        while BV > 4 and heads * -(-V // BV) < sms * SCHEDULERS_PER_SM * 3 // 4:
            BV //= 2
    warps = max(warps, min(8, BK * BV // TILE))
    return heads * -(-V // BV), warps, (K, V, BK, BV), 1 if T == 1 else STAGES
