"""Sequences of few heads, cut into segments whose programs run at the same time.

The sweep of a segment starts from zeros, except that of the first one, which starts from s0. The
identity is swept through the segment, too, with v = 0 and the same maps. If S is the state before
the segment, and Q what the identity's columns give instead of o,

    o += Q S        the state before each tile, and after the segment:  += M S

So the states between segments follow one after the other (`wkv7_join_kernel` of ../segments.py),
and then a launch of all tiles adds their share. Back, the gradient of the state takes the same way.
If the tokens before are another GPU's, the identity is swept through the first segment, too.
Exact for any decay. With G segments the chain is a G-th as long.

While SMs are free, other programs sweep the identity (APART). Otherwise these would have to share
SMs, so four more warps of each segment's program sweep it (BESIDE).
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....runtime import devices
from ....runtime.compile_triton import assembled
from ....runtime.launch_triton import launch
from ...few import segments_of
from ..segments import joined, start_from, wkv7_join_kernel
from .layouts import APART, BESIDE, N

JOINED = 32  # values at a time of a program that joins segments
COUNT = 4  # of 64 tokens that a program adds a share to


@gluon.jit
def place_of_segment(
    j, i_h, H, has_state, sequences, segments, identities,
    SEPARATE: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Which segment a program sweeps, and from what.

    Args:
        j: of the program, over H; sequences: how many segments there are, of all sequences.
        segments, identities: of a sequence; and how many of them, the last ones in the direction of
            the sweep, the identity is swept through.
        SEPARATE: whether the programs from `sequences` on do that.

    Returns:
        i: of the segment; its place in the results of the identity; whether the program sweeps the
        identity; whether a state was given to start from, and where that is.
    """
    first = 0 if REVERSE else segments - identities
    if SEPARATE:
        i_out = j - sequences
        of_identity = i_out >= 0
        i = gl.where(of_identity, i_out // identities * segments + i_out % identities + first, j)
    else:
        i, turn = j, j % segments - first
        i_out = j // segments * identities + turn
        of_identity = (turn >= 0) & (turn < identities)
    starts = i % segments == (segments - 1 if REVERSE else 0)
    i_state = (i // segments * H + i_h) * N * N
    return i, i_out, of_identity, gl.where(starts, has_state, 0), i_state


@assembled
@triton.jit(do_not_specialize=["H", "segments", "identities", "tiles"])
def wkv7_add_segments_kernel(
    ends, o, o_i, states, states_i, H, segments, identities, tiles,
    N: tl.constexpr, COUNT: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Adds to o and to states, in place, what the state before a segment gives.

    ends: [sequences, identities + 1, H, N, N], the state before each of the last `identities`
    segments, and after them, in the direction of the sweep. o, o_i: [tokens, H, N], states:
    [tiles, H, values, keys]; either may be None. Those of the identity have only the last
    segments, or back the first. tiles: of a segment.
    """
    i_h, i_x = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    runs = tl.cdiv(tiles, COUNT)
    run, q = (i_x % runs).to(tl.int32), i_x // runs
    i_n, g = q // identities, q % identities  # g: in the direction of the sweep
    segment, of_identity = i_n * segments + segments - identities + g, q
    if REVERSE:
        segment = i_n * segments + identities - 1 - g
        of_identity = i_n * identities + identities - 1 - g
    row, col = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    b_s = tl.load(ends + ((i_n * (identities + 1) + g) * H + i_h) * N * N + row * N + col)
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


def segments_for(r, cu_seqlens):
    """Into how many segments of whole tiles the sequences of r are cut; packed ones are not."""
    B, T, H, _ = r.shape
    if cu_seqlens is not None:
        return 1
    return segments_of(B * H, T, devices.gpu_of(r.device).sms)


def programs_for(r, of_segments, of_identities):
    """How many programs sweep, and how the identity is swept: `Form.CUT`."""
    if not of_identities:
        return of_segments, 0
    if of_segments + of_identities <= devices.gpu_of(r.device).sms:
        return of_segments + of_identities, APART.value
    return of_segments, BESIDE.value


def for_identity(G, count, o, ends, states):
    """For `count` identities of G segments: o, states after segments, states, or None as these."""
    (_, H, K, V), o_i, states_i = ends.shape, None, None
    if o is not None:
        o_i = o.new_empty((o.numel() // (G * H * V) * count, H, V))
    if states is not None:
        states_i = states.new_empty((len(states) // G * count, H, V, K))
    return o_i, torch.empty_like(ends), states_i


def add_segments(G, count, ends, o, states, of_identity, reverse, between=None):
    """Joins G segments, and adds to o and states what was before them. Returns the last states.

    All segments have the same number of whole tiles of 64 tokens.

    Args:
        count: of identities, G - 1, or G if another GPU has the tokens before.
        ends: the states after segments, `[sequences · G, H, 64, 64]`, in the direction of the
            sweep; they are changed.
        between: called with what all segments make of a state, a matrix `[sequences, H, 64, 64]`
            and a state; returns the state before the first one. Without tokens before, the matrix
            is None, and nothing is returned; in reverse it is None always.
    """
    S, (_, H, K, V) = len(ends) // G, ends.shape
    o_i, matrices, states_i = of_identity
    ends, before = ends.view(S, G, H, K, V), ends
    if count == G:
        matrices = matrices.view(S, G, H, K, K)
        first = between(*joined(ends, matrices, of_matrices=not reverse))
        start_from(ends, matrices, first)
    if G > 1:
        blocks = triton.cdiv(V, JOINED)
        join = (ends, matrices), (H, G + 1, G), (K, V, K, JOINED)
        launch(wkv7_join_kernel, S * H * blocks, 4, *join)
    if count == G:
        before = torch.cat((first[:, None], ends), 1)
    elif between is not None:
        between(None, ends[:, -1])
    if count:
        tiles = (len(o_i) // K if states_i is None else len(states_i)) // (S * count)
        launch(
            wkv7_add_segments_kernel, S * count * triton.cdiv(tiles, COUNT) * H, 4,
            (before, o, o_i, states, states_i), (H, G, count, tiles), (K, COUNT, reverse),
        )  # fmt: skip
    return ends[:, -1].clone()
