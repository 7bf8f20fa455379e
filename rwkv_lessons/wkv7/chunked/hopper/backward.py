"""The gradients of the fused WKV-7, from the states that the forward pass has kept.

Two launches: reverse.py sweeps the gradient of the state from the last tile of 64 tokens to the
first, which reads 5 S and writes 1 S, S being the size of r. With the states before and after them,
all tiles are independent, and gradients.py reads 9 S and writes 6 S.
"""

import torch

from .forward import aligned
from .gradients import tile_gradients
from .reverse import state_gradients


def gradients(
    r, w, k, v, a, b, s0, cu_seqlens, states, nothing, do, ds1, scale, decay,
    between=None, enters=False,
):  # fmt: skip
    """The gradients of r, w, k, v, a, b and s0, as ../backward.py's; all but ds0 in bfloat16.

    Args:
        states: those before each 64 tokens, as `forward` keeps them; nothing: its last result.
        between, enters: as `state_gradients` takes them.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            buffers = (r, w, k, v, a, b, s0, cu_seqlens, states, nothing, do, ds1, scale, decay)
            return gradients(*buffers, between, enters)
    do = torch.zeros_like(v) if do is None else do
    r, w, k, v, a, b, do = (aligned(x) for x in (r, w, k, v, a, b, do))
    of_states = (r, w, a, b, do, ds1, cu_seqlens, scale, decay)
    d_states, ds0 = state_gradients(*of_states, between, enters)
    of_inputs = tile_gradients(r, w, k, v, a, b, do, states, d_states, cu_seqlens, scale, decay)
    return *of_inputs, ds0
