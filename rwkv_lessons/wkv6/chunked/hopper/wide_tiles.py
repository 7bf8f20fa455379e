"""What the roles of wide.py share: sizes, layouts, and copies to shared memory."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ..tiles import FITS_TO_END
from .tiles import C

N = gl.constexpr(128)  # keys, and values
# Across each of four runs; half of them across the chunk, and their log2; half of what is across
# its first half and not across its second half.
DECAYS = gl.constexpr(7)
FITS = gl.constexpr(2.0**-FITS_TO_END.value)
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
IN_A_WARP = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))  # 128 numbers, in each warp
BYTES = gl.constexpr(C.value * C.value * 2)  # of a tile


def takes_whole_heads(r, V):
    """Whether kernels for whole heads take what the Hopper kernels take."""
    return r.dtype == torch.bfloat16 and r.shape[3] == V == N.value


@gluon.jit
def load_keys(inputs, tiles, loaded, i, row, column, g: gl.constexpr, pred):
    """Starts the copies of w, r and k to stage i: 64 tokens and keys, where `pred`."""
    for n in gl.static_range(3):
        mbarrier.expect(loaded[n].index(i), BYTES, pred=pred)
    for n in gl.static_range(3):
        tma.async_copy_global_to_shared(
            inputs[n], [row, column + C * g], loaded[n].index(i), tiles[n].index(2 * i + g),
            pred=pred,
        )  # fmt: skip


@gluon.jit
def load_values(v, s_v, loaded, i, row, column, h: gl.constexpr, pred):
    """Starts the copy of v to stage i: 64 tokens and values, where `pred`."""
    mbarrier.expect(loaded.index(i), BYTES, pred=pred)
    tma.async_copy_global_to_shared(
        v, [row, column + C * h], loaded.index(i), s_v.index(2 * i + h), pred=pred
    )


@gluon.jit
def decays_of(s_decay, i, run, half: gl.constexpr):
    """Those of 64 keys, in a stage: across one of four runs of the chunk, or 4 to 6 (`DECAYS`)."""
    return s_decay.index((DECAYS * i + run) * 2 + half)


@gluon.jit
def is_mild(s_decay, i):
    """Whether the factors of the chunk are float32 if it is one run."""
    rows = s_decay._reinterpret(gl.float32, [2 * DECAYS, N], FLAT)
    return gl.min(rows.index(DECAYS * i + 4).load(IN_A_WARP), 0) >= FITS
