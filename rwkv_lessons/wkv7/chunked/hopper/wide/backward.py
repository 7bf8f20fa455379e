"""The gradients of heads of 128: the sweep back (8 S read and written), then all tiles at once."""

import torch

from ..forward import aligned
from .gradients import tile_gradients
from .sweep import state_gradients


def gradients(r, w, k, v, a, b, s0, cu_seqlens, states, z, do, ds1, scale, decay):
    """As `gradients` of ../backward.py. states, z: as `forward` of sweep.py keeps them."""
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            buffers = (r, w, k, v, a, b, s0, cu_seqlens, states, z, do, ds1, scale, decay)
            return gradients(*buffers)
    do = torch.zeros_like(v) if do is None else do
    r, w, k, v, a, b, do = (aligned(x) for x in (r, w, k, v, a, b, do))
    dv, ds0, d_states, dy = state_gradients(r, w, k, do, a, b, ds1, cu_seqlens, scale, decay)
    dr, dw, dk, da, db = tile_gradients(
        r, w, k, v, a, b, do, states, d_states, z, dy, cu_seqlens, scale, decay
    )
    return dr, dw, dk, dv, da, db, ds0
