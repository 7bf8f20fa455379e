"""Multi-head latent attention: a cache that holds one short vector per token for all heads.

Each token stores a latent c of rank R and a rotated key r of size P. Head h computes its key and
value from them, k = (w_k[h] c, r) and v = w_v[h] c, and attends as usual with a query (q, q_rope):

    o = Σ p[n] v[n],    p = softmax(scale · (q · w_k[h] c[n] + q_rope · r[n]))

Letters of this operation:

    M query tokens     N tokens in the cache     H heads
    R latent rank      P rope size               K, V size of a key without rope, and of a value
"""

import functools

import torch

from ..runtime.arguments import check_count, checked, learns
from ..runtime.packages import TRITON
from .absorbed import absorbed, mla_absorbed
from .arguments import check_arguments
from .cache import fp8_cache, fp8_cache_parts
from .prefill.prefill import mla_prefill, prefill
from .reference import mla_reference

__all__ = ["METHODS", "break_even", "fp8_cache", "fp8_cache_parts", "mla"]
__all__ += ["mla_absorbed", "mla_decode", "mla_prefill", "mla_reference"]

PREFILL_FROM = 96  # query tokens: decode, which packs the heads together, was the faster up to here


def _decode():
    """`decode` of arguments that were checked, with which Triton is imported."""
    if not TRITON:
        return absorbed
    from .decode.forward import decode

    return decode


_known_decode = functools.cache(_decode)  # an import statement costs the host 1 µs


def __getattr__(name):
    if name == "mla_decode" and TRITON:
        from .decode.forward import mla_decode

        value = mla_decode
    elif name == "mla_decode":
        value = mla_absorbed
    elif name == "METHODS":
        value = {"reference": mla_reference, "absorbed": mla_absorbed}
        value |= {"decode": __getattr__("mla_decode"), "prefill": mla_prefill} if TRITON else {}
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def mla(
    q,
    q_rope,
    latent,
    k_rope,
    w_k,
    w_v,
    *,
    scale,
    lengths=None,
    left_padding=None,
    block_table=None,
    scales=None,
    tokens=None,
):
    """Attends to a latent cache: in the latent space for few queries, expanded for many.

    Without Triton, as on macOS, it always attends in the latent space, in plain torch.

    Args:
        q: query without rope, `[B, M, H, K]`, float32, float16, bfloat16 or float64; if w_k is
            None, the absorbed query `[B, M, H, R]`.
        q_rope: query with rope, `[B, M, H, P]`.
        latent: the cache, `[B, N, R]`, or in pages, `[pages, page size, R]`. Its tokens may be
            the first R columns of a wider buffer; the last stride is 1.
        k_rope: keys with rope, `[B, N, P]`, or in pages, `[pages, page size, P]`.
        w_k: `[H, K, R]`: the key of head h is `w_k[h] @ c` for a latent c; or None.
        w_v: `[H, V, R]`: the value of head h is `w_v[h] @ c`.
        scale: a factor for the scores, (K + P)**-0.5 in most models.
        lengths: the number of filled slots of each sequence, `[B]` integers from 0 to N; N if
            None. Required with pages.
        left_padding: how many of the first filled slots are padding, `[B]`, 0 to N; 0 if None.
        block_table: `[B, pages]` integers: token n is in page `block_table[b, n // page size]`.
            Entries without tokens can have any value.
        scales: of a latent in FP8 (float8_e4m3fn), float32 `[as latent, groups]`: value r is
            latent[r] · scales[r // (R / groups)]. k_rope has q's dtype. `fp8_cache_parts` makes all
            three out of a cache of 656 bytes a token, as vLLM (`fp8_ds_mla`) and FlashMLA keep it.
        tokens: which tokens each query sees, `[B, M, K]` integers, or `[B, K]` if M is 1: positions
            in its sequence, in any order. An entry outside of 0 … lengths - 1, such as -1, counts
            as none, and a token that is listed twice counts twice. K is at least 1. Nothing else
            is masked: leave out tokens after the query, and padding, as left_padding must be None.

    Returns:
        o `[B, M, H, V]` in q's dtype, and the log-sum-exp of the scores `[B, M, H]`, float32
        (float64 if q is). Query m is at position lengths - M + m and sees tokens up to that
        position. A query that sees no token has zeros in o and -inf as its log-sum-exp. Empty
        slots can hold anything.

        A NaN in q or q_rope stays in its query and head. One in the latent can reach all queries
        of its sequence, also those before its token (0 · NaN is NaN). One in k_rope reaches the
        queries that see its token.

        torch.autocast has no effect. Second gradients are supported by the methods in torch; the
        kernels raise a RuntimeError.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device; on a CPU, outside
            torch.compile, also if lengths, left_padding or a page is out of range. On a GPU the
            host does not read them. There, lengths and left_padding are clamped to their range
            and an invalid page counts as page 0, so nothing outside the cache is read.
    """
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    which = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    if scales is not None or tokens is not None:
        method = (
            mla_absorbed if not q.is_cuda or learns(*tensors, scales) else __getattr__("mla_decode")
        )
        return method(*tensors, scale=scale, **which, scales=scales, tokens=tokens)
    sizes = check_arguments(*tensors, scale=scale, **which)
    expand = w_k is not None and sizes.M > break_even.unchecked(sizes.K, sizes.R, sizes.V)
    if expand or sizes.M >= PREFILL_FROM:
        return prefill(*tensors, sizes, scale, **which)
    if learns(*tensors) or not q.is_cuda:
        return absorbed(*tensors, sizes, scale, **which)
    decode = (_decode if torch.compiler.is_compiling() else _known_decode)()
    return decode(*tensors, sizes, scale, **which)


@checked(K=check_count, R=check_count, V=check_count)
def break_even(K, R, V):
    """From how many query rows per cached token on expanding keys and values is cheaper.

    A pair of query and token costs 2(2R + P) flops in the latent space and 2(K + P + V) expanded;
    expanding one token for one head costs 2R(K + V).
    """
    saved = 2 * R - K - V
    return R * (K + V) / saved if saved > 0 else float("inf")
