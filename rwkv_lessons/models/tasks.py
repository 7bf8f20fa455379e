"""What a small model learns: to reverse digits, and the text that Python carries."""

import functools
from pydoc_data import topics

import torch

DIGITS, ASK, END = 10, 10, 11  # tokens of reversal: 0 … 9, "reverse that", and after the answer
REVERSAL_VOCABULARY = 12


def reversal(step, batch, longest, shortest=1, seed=0):
    """`batch` lines "314 ask 413 end" of shortest … longest digits, and where the answers stand.

    Returns:
        tokens `[batch, 2·longest + 2]`, with END after the end, and which of the tokens after the
        first belong to an answer `[batch, 2·longest + 1]`, float32. The same step, the same lines.
    """
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


@torch.no_grad()
def reversed_right(model, length, count, seed=1):
    """The share of `count` new lines of this length of which every digit is right."""
    tokens, answers = reversal(length, count, length, length, seed)
    logits, _ = model(tokens[:, :-1])
    wrong = (logits.argmax(-1) != tokens[:, 1:]) & (answers > 0)
    return float((~wrong.any(1)).float().mean())


@functools.cache
def text():
    """The language reference that comes with Python, some 700,000 characters."""
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


def passages(step, batch, T, seed=0):
    """`batch` passages of T + 1 characters, from anywhere; the same step, the same passages."""
    g = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(characters()) - T - 1, (batch,), generator=g)
    return characters()[starts[:, None] + torch.arange(T + 1)], None


def spelled(tokens):
    """Tokens `[T]` as text."""
    return "".join(alphabet()[n] for n in tokens.tolist())
