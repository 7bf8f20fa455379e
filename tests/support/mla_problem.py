"""A call of latent attention with everything that nobody may read full of NaN."""

import math

import torch

OUTSIDE = 2147480000  # in a block table where no page is needed


def problem(
    B, M, H, N, *, R=32, P=16, K=24, V=20, dtype=torch.float64, absorbed=False, lengths=None,
    left_padding=None, page_size=None, shared_pages=0, loud=1.0, device="cpu", seed=0,
):  # fmt: skip
    """Arguments and keywords of a call; latent and k_rope are views of one buffer.

    Args:
        lengths, left_padding: lists, or None.
        page_size: shuffles the cache into pages; the last has room to spare.
        shared_pages: how many first pages all sequences have in common.
        loud: the standard deviation of the scores, about.
    """
    g = torch.Generator().manual_seed(seed)

    def draw(*shape, size=1.0):
        return (size * torch.randn(*shape, generator=g, dtype=torch.float64)).to(dtype)

    q = draw(B, M, H, R if absorbed else K)
    q_rope, cache = draw(B, M, H, P), draw(B, N, R + P)
    w_k = None if absorbed else draw(H, K, R, size=R**-0.5)
    w_v = draw(H, V, R, size=R**-0.5)
    scale = loud * (q.shape[-1] + P) ** -0.5
    which = {"lengths": lengths, "left_padding": left_padding}
    which = {name: torch.tensor(x) for name, x in which.items() if x is not None}
    end = which.get("lengths", torch.full((B,), N))
    cache[torch.arange(N) >= end[:, None]] = float("nan")
    if left_padding is not None:
        cache[torch.arange(N) < which["left_padding"][:, None]] = float("nan")
    if page_size is not None:
        which["lengths"] = end
        cache, which["block_table"] = _in_pages(cache, end, page_size, shared_pages, g)
    tensors = (q, q_rope, cache[..., :R], cache[..., R:], w_k, w_v)
    move = {"device": device}
    tensors = [None if x is None else x.to(**move) for x in tensors]
    if device != "cpu":  # keep them views of one buffer
        cache = cache.to(**move)
        tensors[2:4] = cache[..., :R], cache[..., R:]
    return tensors, {"scale": scale} | {name: x.to(**move) for name, x in which.items()}


def _in_pages(cache, end, page_size, shared, g):
    """The rows of a cache `[B, N, …]` spread over shuffled pages, and the table of pages."""
    B, N, width = cache.shape
    count = -(-N // page_size)
    cache[:, : shared * page_size] = cache[:1, : shared * page_size].clone()
    rows = cache.new_full((B, count * page_size, width), float("nan"))
    rows[:, :N] = cache
    order = torch.randperm(B * count + 3, generator=g)[: B * count].view(B, count)
    order[:, :shared] = order[:1, :shared]
    pages = cache.new_full((B * count + 3, page_size, width), float("nan"))
    pages[order] = rows.view(B, count, page_size, width)
    unused = torch.arange(count) * page_size >= end[:, None]
    return pages, order.masked_fill(unused, OUTSIDE).int()


def in_float64(tensors, **which):
    """The reference's o and log-sum-exp for the same numbers in float64."""
    from rwkv_lessons.mla import mla_reference

    return mla_reference(*(None if x is None else x.double() for x in tensors), **which)


def relative_error(o, expected):
    """‖o − ref‖ / ‖ref‖; NaN if any element is, 0 if both are zeros."""
    return float((o.double() - expected).norm() / expected.norm().clamp_min(1e-300))


def near(result, expected, limits):
    """Holds o and the log-sum-exp against float64; limits: of o's error, by dtype."""
    (o, lse), (expected, expected_lse) = result, expected
    assert o.shape == expected.shape and lse.shape == expected_lse.shape
    assert not o.isnan().any()
    assert relative_error(o, expected) < limits[o.dtype]
    finite = expected_lse.isfinite()
    assert torch.equal(lse == -math.inf, ~finite) and not o[~finite].any()
    # Scores of the half types are float32 sums of exact products: as near as float32 is.
    torch.testing.assert_close(lse[finite].double(), expected_lse[finite], rtol=1e-5, atol=1e-5)
