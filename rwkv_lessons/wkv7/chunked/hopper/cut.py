"""Sequences of few heads, cut into segments whose programs run at the same time.

The sweep of a segment starts from zeros, except that of the first one, which starts from s0. Beside
it a program sweeps the identity through the segment, with v = 0. If S is the state before the
segment, and Q what the identity's columns give instead of o,

    o += Q S        the state before each tile, and after the segment:  += M S

So the states between segments follow one after the other (`wkv7_join_kernel` of ../segments.py),
and then a launch of all tiles adds their share. Back, the gradient of the state takes the same way.
Exact for any decay. With G segments the chain is a G-th as long; tiles are read twice, but the
second time from the L2 cache.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....runtime import devices
from ....runtime.compile_triton import assembled
from ....runtime.launch_triton import launch
from ..segments import wkv7_join_kernel
from .layouts import N

# Tokens of a segment: what is added afterwards has to take less time than the chain gets shorter.
LEAST, LEAST_OF_STATES = 2048, 4096
JOINED = 32  # values at a time of a program that joins segments
COUNT = 4  # of 64 tokens that a program adds a share to


@gluon.jit
def place_of_segment(j, i_h, H, has_state, sequences, segments, first: gl.constexpr):
    """Which segment a program sweeps, and from what.

    Args:
        j: of the program, over H; sequences: how many segments there are, of all sequences.
        first: the first segment of a sequence that the identity is swept through: 1, or back 0.

    Returns:
        i: of the segment; its place in the results, which of the identity's are others; whether it
        sweeps the identity; whether it starts from a state that was given, and where that is.
    """
    q, others = j - sequences, segments - 1
    is_identity = q >= 0
    i = gl.where(is_identity, q // others * segments + q % others + first, j)
    starts = i % segments == (0 if first == 1 else segments - 1)
    has_state = gl.where(starts & (q < 0), has_state, 0)
    i_state = (i // segments * H + i_h) * N * N
    return i, gl.where(is_identity, q, j), is_identity.to(gl.int32), has_state, i_state


@assembled
@triton.jit(do_not_specialize=["H", "segments", "tiles"])
def wkv7_add_segments_kernel(
    ends, o, o_i, states, states_i, H, segments, tiles,
    N: tl.constexpr, COUNT: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Adds to o and to states, in place, what the state before a segment gives.

    ends: [sequences, segments, H, N, N], the state after each, in the direction of the sweep.
    o, o_i: [tokens, H, N], states: [tiles, H, values, keys]; either may be None. Those of the
    identity have no first segment, or back no last one. tiles: of a segment.
    """
    i_h, i_x = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    runs = tl.cdiv(tiles, COUNT)
    run, q = (i_x % runs).to(tl.int32), i_x // runs
    i_n, g = q // (segments - 1), q % (segments - 1) + 1  # g: in the direction of the sweep
    segment, of_identity = i_n * segments + g, q
    if REVERSE:
        segment = i_n * segments + segments - 1 - g
        of_identity = i_n * (segments - 1) + segments - 1 - g
    row, col = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    b_s = tl.load(ends + ((i_n * segments + g - 1) * H + i_h) * N * N + row * N + col)
    for j in range(run * COUNT, tl.minimum(run * COUNT + COUNT, tiles)):
        if o is not None:
            at = ((segment * tiles + j) * N + row) * H * N + i_h * N + col
            at_i = ((of_identity * tiles + j) * N + row) * H * N + i_h * N + col
            b_q, b_o = tl.load(o_i + at_i).to(tl.float32), tl.load(o + at).to(tl.float32)
            b_o = tl.dot(b_q, b_s, b_o, input_precision="tf32")
            tl.store(o + at, b_o.to(tl.bfloat16))
        if states is not None:
            at = ((segment * tiles + j) * H + i_h) * N * N + row * N + col
            at_i = ((of_identity * tiles + j) * H + i_h) * N * N + row * N + col
            b_m, b_x = tl.load(states_i + at_i).to(tl.float32), tl.load(states + at).to(tl.float32)
            b_x = tl.dot(tl.trans(b_s), b_m, b_x, input_precision="tf32")
            tl.store(states + at, b_x.to(tl.bfloat16))


def segments_for(r, cu_seqlens, states):
    """Into how many segments of whole tiles the sequences of r are cut: 1, 2, 4, …

    There are no more of them than SMs. Packed sequences are not cut.

    states: whether a share has to be added to states, too.
    """
    (B, T, H, _), G = r.shape, 1
    if cu_seqlens is None:
        most = min(
            devices.gpu_of(r.device).sms // (B * H), T // (LEAST_OF_STATES if states else LEAST)
        )
        while 2 * G <= most and T % (2 * G * N.value) == 0:
            G *= 2
    return G


def for_identity(G, o, ends, states):
    """For the identity: o, the states after segments, and states, or None where these are."""
    (_, H, K, V), o_i, states_i = ends.shape, None, None
    if o is not None:
        o_i = o.new_empty((o.numel() // (G * H * V) * (G - 1), H, V))
    if states is not None:
        states_i = states.new_empty((len(states) // G * (G - 1), H, V, K))
    return o_i, torch.empty_like(ends), states_i


def add_segments(G, ends, o, states, of_identity, reverse):
    """Joins G segments, and adds to o and states what was before them. Returns the last states.

    ends: those after segments, `[sequences · G, H, 64, 64]`, in the direction of the sweep; they
    become the states there.
    """
    S, (_, H, K, V) = len(ends) // G, ends.shape
    o_i, matrices, states_i = of_identity
    blocks = triton.cdiv(V, JOINED)
    launch(wkv7_join_kernel, S * H * blocks, 4, (ends, matrices), (H, G + 1, G), (K, V, K, JOINED))
    tiles = (len(o_i) // K if states_i is None else len(states_i)) // (S * (G - 1))
    launch(
        wkv7_add_segments_kernel, S * (G - 1) * triton.cdiv(tiles, COUNT) * H, 4,
        (ends, o, o_i, states, states_i), (H, G, tiles), (K, COUNT, reverse),
    )  # fmt: skip
    return ends.view(S, G, H, K, V)[:, -1].clone()
