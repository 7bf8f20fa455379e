"""Few heads of 64 on Hopper: when the fused kernels cut sequences, and when they are chosen.

The limits come from times of a CUDA graph on an H100, for 1 to 60 heads and 128 to 32,768 tokens. A
program takes 2.4 µs for 64 tokens, cut or not. A sequence in two segments needs three programs: one
for each segment, and one for the identity (chunked/hopper/cut.py). With more than 44 heads these
are more than an H100's 132 SMs, so above 40 segments must be longer.
"""

TILE, MOST = 64, 16  # tokens of a tile, and segments of a sequence, whole tiles each
LEAST, LEAST_OF_STATES = 512, 1024  # tokens of a segment; and where states are kept for gradients
MANY, LEAST_OF_MANY, LEAST_OF_MANY_STATES = 40, 1024, 4096  # of more heads than that


def segments_of(heads, T, sms, states):
    """Into how many segments sequences of T tokens are cut: 1, 2, 4, …, and no more than SMs.

    Args:
        heads: sequences times heads.
        states: whether states are kept, or gradients of states wanted.
    """
    most, G = _most_segments(heads, T, sms, states), 1
    while 2 * G <= most and T % (2 * G * TILE) == 0:
        G *= 2
    return G


def is_cut(heads, T, sms, states):
    """Whether there is more than one of `segments_of`.

    torch.compile guards every comparison with a dynamic T. With the loop of `segments_of` it would
    compile a call again for each number of segments, and soon reach its recompile limit.
    """
    return _most_segments(heads, T, sms, states) >= 2 and T % (2 * TILE) == 0


def _most_segments(heads, T, sms, states):
    least, of_states = LEAST, LEAST_OF_STATES
    if heads > MANY:
        least, of_states = LEAST_OF_MANY, LEAST_OF_MANY_STATES
    return min(sms // heads, T // (of_states if states else least), MOST)


def fewest_heads(T, cut, gradients):
    """From how many heads on fused is faster than chunked; cut: whether sequences are cut."""
    if cut:
        return 24_576 // T if gradients else 1
    return 32 if gradients else 40 - 16_384 // T
