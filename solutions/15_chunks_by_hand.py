"""The recurrence in chunks: what a token reads is the state before its chunk, and its own chunk."""

import torch
from torch.nn import functional as F

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.chunks import Chunk, chunk_answer, chunk_work


def sums(w):
    after = w.cumsum(-2)
    return F.pad(after[..., :-1, :], (0, 0, 1, 0)), after


def with_state(r, k, v, w, s):
    """What the tokens of a chunk read from the state before it, and the state after it.

    r, k, v, w are [..., C, N]; s is [..., N, N], keys × values. Returns the same shapes.
    """
    before, after = sums(w)
    last = after[..., -1:, :]  # the log decay of the whole chunk, [..., 1, N]
    ### BEGIN SOLUTION
    o = (r * before.exp()) @ s
    s1 = last.exp().mT * s + (k * (last - after).exp()).mT @ v
    ### END SOLUTION
    return o, s1


def pairs(r, k, w):
    """The score of each token t with each earlier token s, with a decay for every pair.

    r, k, w are [..., C, N]. Returns scores, [..., C, C], 0 where s is not earlier than t.
    """
    before, after = sums(w)
    C = r.shape[-2]
    later = torch.ones(C, C, dtype=torch.bool).triu()[..., None]  # s ≥ t; [C, C, 1]
    ### BEGIN SOLUTION
    decay = before[..., :, None, :] - after[..., None, :, :]  # [..., C, C, N]
    decay = decay.masked_fill(later, -torch.inf).exp()
    return (r[..., :, None, :] * decay * k[..., None, :, :]).sum(-1)
    ### END SOLUTION


def product(r, k, w, m):
    """The same scores from one matrix product: both sides count their decay from token m.

    r, k, w are [..., C, N]; 0 ≤ m < C. Returns scores, [..., C, C], 0 where s is not earlier.
    """
    before, after = sums(w)
    ### BEGIN SOLUTION
    start = before[..., m : m + 1, :]
    left = r * (before - start).exp()
    right = k * (start - after).exp()
    return (left @ right.mT).tril(-1)
    ### END SOLUTION


def blocks(r, k, w, L):
    """The same scores, L tokens at a time: with earlier tokens, and with each other.

    r, k, w are [..., C, N], L divides C. Returns scores, [..., C, C], 0 where s is not earlier.
    """
    before, after = sums(w)
    scores = r.new_zeros(*r.shape[:-1], r.shape[-2])
    for i in range(0, r.shape[-2], L):
        here = slice(i, i + L)
        ### BEGIN SOLUTION
        own = (x[..., here, :] for x in (r, k, w))
        scores[..., here, here] = product(*own, m=L // 2)
        start = before[..., i : i + 1, :]
        left = r[..., here, :] * (before[..., here, :] - start).exp()
        right = k[..., :i, :] * (start - after[..., :i, :]).exp()
        scores[..., here, :i] = left @ right.mT
        ### END SOLUTION
    return scores


def chunked(r, k, v, w, u, C=64, L=16, scores=None):
    s, o = r.new_zeros(*r.shape[:-2], r.shape[-1], v.shape[-1]), []
    for r_c, k_c, v_c, w_c in zip(*(x.split(C, -2) for x in (r, k, v, w)), strict=True):
        state, s = with_state(r_c, k_c, v_c, w_c, s)
        own = (scores or blocks)(r_c, k_c, w_c, L) @ v_c
        itself = (r_c * u * k_c).sum(-1, keepdim=True) * v_c
        o.append(state + own + itself)
    return torch.cat(o, -2), s


ONE = Chunk("one token", "one", 1, 1, 4)
TWO = Chunk("two tokens", "two", 1, 2, 4)
FEW = Chunk("five tokens", "few", 1, 5, 4)
HEADS = Chunk("every head has its own tokens", "heads", 3, 8, 4)
FAST = Chunk("fast decays, 64 tokens", "fast", 1, 64, 8, "fast")
MORE = Chunk("a chunk of 150 tokens", "long", 1, 150, 3)
FASTER = Chunk("faster decays, 64 tokens", "fast", 1, 64, 8, "faster")


def _with(case, **more):
    """The case with keyword arguments for the function."""
    return Chunk(case.name, case.symptom, case.heads, case.C, case.N, case.decay, (*more.items(),))


EXERCISES = {
    "with_state": Exercise(
        minutes=7,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "o = (r * before.exp()) @ s": "All tokens of a chunk read the state in one "
                "product.",
                "s1 = last.exp().mT * s + (k * (last - after).exp()).mT @ v": "All exponents are "
                "≤ 0, so nothing can overflow.",
            },
            instead={
                "k·exp(−after), and last taken out of the sum": "saves one exp, but exp(−after) "
                "overflows with strong decays.",
            },
            stretch="Pass a list of chunks at once: which part is a loop over chunks, and which "
            "is one batched product?",
        ),
        hints=(
            "Two products contain the state's axes: one sums over keys (r with s), one over "
            "tokens (k with v). Multiply each token's row by a decay first.",
            "A token reads a state that has faded by every earlier decay in the chunk. A token's "
            "k·v fades by the later ones: last - after. The old state fades by last.",
            "o = (r * before.exp()) @ s; "
            "s1 = last.exp().mT * s + (k * (last - after).exp()).mT @ v.",
        ),
        evidence=(
            chunk_answer("rkvws", ONE, TWO, FEW, HEADS, FAST, MORE),
            chunk_work("rkvws", lambda H, C, N: H * (2 * C + 1) * N, HEADS),
        ),
        symptoms={
            "one": "With one token: it reads r @ s, undecayed, and the new state is exp(w)·s + "
            "k·v.",
            "two": "Token 1 reads a state that faded by w[0]; token 0's k·v fades by w[1].",
            "fast": "exp(−after) overflows when decays are strong. Subtract before the exp: "
            "last - after is never positive.",
            "exps": "Take the exp of log decays, [..., C, N], and of nothing larger.",
            "products": "Sums over keys and over tokens are matrix products: @.",
        },
    ),
    "pairs": Exercise(
        minutes=7,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "decay = before[..., :, None, :] - after[..., None, :, :]": "The sum of the "
                "decays between s and t.",
                "decay = decay.masked_fill(later, -torch.inf).exp()": "Mask first: a positive "
                "exponent can overflow, and inf · 0 is NaN.",
            },
            instead={
                "A product of two factors": "needs C·N exps instead of C·C·N, and can use tensor "
                "cores, but the factors can overflow: the next exercise.",
            },
            stretch="These scores need no reference point. For which decays is that worth C "
            "times as many exps?",
        ),
        hints=(
            "The decays w[s+1] … w[t-1] lie between token s and a later token t. Which "
            "difference of `before` and `after` is their sum?",
            "Compute before[t] - after[s] for all pairs at once: give each an axis of length 1 "
            "where the other has its tokens. Where s ≥ t the difference may be positive, so mask "
            "it before the exp.",
            "decay = before[..., :, None, :] - after[..., None, :, :]; then "
            ".masked_fill(later, -torch.inf).exp(); multiply by r and k in the same way and sum "
            "over the last axis.",
        ),
        evidence=(chunk_answer("rkw", ONE, TWO, FEW, HEADS, FAST, MORE),),
        symptoms={
            "one": "There is no earlier token, so the only score is 0. The bonus is not part of "
            "the scores.",
            "two": "Token 1 reads token 0 undecayed, because no decay lies between them.",
            "few": "The decays of s+1 … t-1 lie between s and t: neither that of s nor that of t.",
            "fast": "exp of a large positive number is inf, and inf · 0 is NaN: mask first.",
        },
    ),
    "product": Exercise(
        minutes=5,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "left = r * (before - start).exp()": "Counted from token m in the middle, each "
                "side spans half a chunk.",
                "return (left @ right.mT).tril(-1)": "exp(a − m)·exp(m − b) = exp(a − b): one "
                "product for all pairs.",
            },
            instead={
                "m = 0": "makes the factors span the whole chunk: they overflow with decays half "
                "as strong.",
                "pairs": "is safe for any decay, but no matrix product.",
            },
            stretch="Choose m from the decays, where half of their sum is reached. What does "
            "that gain, and what not?",
        ),
        hints=(
            "exp(before[t] - after[s]) is a product of two factors, one that depends only on t "
            "and one that depends only on s. Insert any number between them.",
            "Count both from start = before[m]: r gets exp(before - start), k gets exp(start - "
            "after). Then one matrix product sums over the channels.",
            "start = before[..., m : m + 1, :]; ((r * (before - start).exp()) @ "
            "(k * (start - after).exp()).mT).tril(-1).",
        ),
        evidence=(
            chunk_answer(
                "rkw",
                _with(ONE, m=0),
                _with(TWO, m=0),
                _with(FEW, m=2),
                _with(HEADS, m=4),
                Chunk("fast decays, 32 tokens", "fast", 1, 32, 8, "fast", (("m", 16),)),
            ),
            chunk_work("rkw", lambda H, C, N: 2 * H * C * N, _with(HEADS, m=4)),
        ),
        symptoms={
            "one": "There is no earlier token, so the only score is 0. The bonus is not part of "
            "the scores.",
            "two": "Token 1 reads token 0 undecayed, because no decay lies between them.",
            "few": "start has to cancel: add it on one side and subtract it on the other.",
            "fast": "Count both sides from token m, so that neither exponent is large. Above the "
            "diagonal the product may be inf: select with tril, because inf · 0 and inf - inf are "
            "NaN.",
            "exps": "Use a factor for every token, not for every pair: 2·C·N exps.",
            "products": "Sum over the channels with @.",
        },
    ),
    "blocks": Exercise(
        minutes=10,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "start = before[..., i : i + 1, :]": "For earlier blocks both exponents are ≤ 0: "
                "safe for any decay.",
                "scores[..., here, here] = product(*own, m=L // 2)": "Only the L × L squares on "
                "the diagonal have factors above 1.",
            },
            instead={
                "L = C": "is one product, but its factors span the whole chunk.",
                "Pairs on the diagonal": "is safe for any decay, but needs L·L·N exps per block.",
            },
            stretch="Halve the squares again and again instead of fixing L: how many products, "
            "and how many exps?",
        ),
        hints=(
            "The row of blocks has two parts: the square on the diagonal, which `product` can "
            "compute from its middle, and everything left of it.",
            "Left of the diagonal, every s comes before token i and every t does not: count from "
            "before[i]. Then both exponents are at most 0, whatever the decay.",
            "scores[..., here, here] = product(r[here], k[here], w[here], L // 2); start = "
            "before[..., i : i + 1, :]; left = r[here]·exp(before[here] - start), right = "
            "k[:i]·exp(start - after[:i]); scores[..., here, :i] = left @ right.mT.",
        ),
        evidence=(
            chunk_answer(
                "rkw",
                Chunk("one block", "one", 1, 4, 4, more=(("L", 4),)),
                Chunk("two blocks", "two", 1, 8, 4, more=(("L", 4),)),
                Chunk("every head has its own tokens", "heads", 3, 12, 4, more=(("L", 4),)),
                _with(FASTER, L=16),
                _with(MORE, L=10),
            ),
            # An exp for each key that a block of queries looks at, and for each query, twice.
            chunk_work(
                "rkw", lambda H, C, N: H * (C * (C // 16) // 2 + 3 * C) * N, _with(FAST, L=16)
            ),
        ),
        symptoms={
            "one": "With one block, it is product(r, k, w, L // 2).",
            "two": "The second block's tokens read those of the first: the square left of the "
            "diagonal.",
            "fast": "Is any exponent large? Count from the middle of the block on the diagonal, "
            "and from before[i] left of it.",
            "exps": "Use factors for tokens, not for pairs.",
            "products": "Sum over the channels with @.",
        },
    ),
}
