"""Few heads of 64 on Hopper: when the fused kernels cut sequences, and when they are chosen.

The limits come from times of a CUDA graph on an H100 and an H200, for 1 to 64 heads and 512 to
32,768 tokens (docs/appendix/wkv7_log.md). A program takes 2.4 µs for 64 tokens, cut or not. A
segment needs a second one for the identity or, where no SM is free, more warps
(chunked/hopper/cut.py). Above 40 heads segments must be longer to pay.
"""

TILE, FROM = 64, 1024  # tokens of a tile, of which segments consist; and of a sequence that is cut
LEAST, MOST = 256, 8  # tokens of a segment, and segments of a sequence;
LONG, MOST_OF_LONG = 8192, 16  # or of one of so many tokens
MANY, LEAST_OF_MANY = 40, 1024  # of more heads than that


def segments_of(heads, T, sms):
    """Into how many segments sequences of T tokens are cut: 1, 2, 4, …, and no more than SMs.

    Args:
        heads: sequences times heads.
    """
    G = 1
    if is_cut(heads, T, sms):
        least, most = LEAST_OF_MANY if heads > MANY else LEAST, MOST_OF_LONG if T >= LONG else MOST
        most = min(sms // heads, T // least, most)
        while 2 * G <= most and T % (2 * G * TILE) == 0:
            G *= 2
    return G


def is_cut(heads, T, sms):
    """Whether there is more than one of `segments_of`.

    torch.compile guards every comparison with a dynamic T. With the loop of `segments_of` it would
    compile a call again for each number of segments, and soon reach its recompile limit.
    """
    least = 2 * LEAST_OF_MANY if heads > MANY else FROM
    return 2 * heads <= sms and T >= least and T % (2 * TILE) == 0


def fewest_heads(T, cut, gradients):
    """From how many heads on fused is faster than chunked; cut: whether sequences are cut."""
    if cut:
        return 12_288 // T if gradients else 1
    return 32 if gradients else 40 - 16_384 // T
