"""What a small model learns: to reverse digits, and the text that Python carries."""

import functools
from functools import partial
from pydoc_data import topics

import torch

from rwkv_lessons.runtime.arguments import check_count, checked, shown

SEEDS = {"step": partial(check_count, least=0), "seed": partial(check_count, least=0)}
DIGITS, ASK, END = 10, 10, 11  # tokens of reversal: 0 … 9, "reverse that", and after the answer
REVERSAL_VOCABULARY = 12


@checked(batch=check_count, longest=check_count, shortest=check_count, **SEEDS)
def reversal(step, batch, longest, shortest=1, seed=0):
    """`batch` lines "314 ask 413 end" of shortest … longest digits, and where the answers stand.

    Returns:
        tokens `[batch, 2·longest + 2]`, with END after the end, and which of the tokens after the
        first belong to an answer `[batch, 2·longest + 1]`, float32. The same step, the same lines.
    """
    if shortest > longest:
        raise ValueError(f"shortest must be at most longest = {longest}, got {shortest}")
    g = torch.Generator().manual_seed(1_000_003 * seed + step)
    lengths = torch.randint(shortest, longest + 1, (batch,), generator=g)
    digits = torch.randint(DIGITS, (batch, longest), generator=g)
    tokens = torch.full((batch, 2 * longest + 2), END)
    answers = torch.zeros(batch, 2 * longest + 1)
    for b, n in enumerate(lengths.tolist()):
        tokens[b, :n], tokens[b, n] = digits[b, :n], ASK
        tokens[b, n + 1 : 2 * n + 1] = digits[b, :n].flip(0)
        answers[b, n : 2 * n + 1] = 1  # the last one is END
    return tokens, answers


@checked(length=check_count, count=check_count, seed=SEEDS["seed"])
@torch.no_grad()
def reversed_right(model, length, count, seed=1):
    """The share of `count` new lines of this length of which every digit is right."""
    tokens, answers = reversal(length, count, length, length, seed)
    logits, _ = model(tokens[:, :-1])
    wrong = (logits.argmax(-1) != tokens[:, 1:]) & (answers > 0)
    return float((~wrong.any(1)).float().mean())


@functools.cache
def text():
    """The language reference that comes with Python: `len(text())` characters, by its version."""
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


@functools.cache
def alphabet():
    """Its characters, sorted; a token is a place in it."""
    return "".join(sorted(set(text())))


@functools.cache
def characters():
    """The text as tokens `[characters]`."""
    number = {letter: n for n, letter in enumerate(alphabet())}
    return torch.tensor([number[letter] for letter in text()])


@checked(batch=check_count, T=check_count, **SEEDS)
def passages(step, batch, T, seed=0):
    """`batch` passages of T + 1 characters, from anywhere; the same step, the same passages."""
    if T > len(characters()) - 2:
        raise ValueError(f"T must be at most {len(characters()) - 2}, the text's length, got {T}")
    g = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(characters()) - T - 1, (batch,), generator=g)
    return characters()[starts[:, None] + torch.arange(T + 1)], None


def spelled(tokens):
    """Tokens `[T]` as text."""
    if not isinstance(tokens, torch.Tensor) or tokens.ndim != 1 or tokens.is_floating_point():
        raise TypeError(f"tokens must be a tensor [T] of integers, got {shown(tokens)}")
    places = tokens.tolist()
    if wrong := [n for n in places if not 0 <= n < len(alphabet())]:
        raise ValueError(f"tokens must be from 0 to {len(alphabet()) - 1}, got {wrong[0]}")
    return "".join(alphabet()[n] for n in places)
