"""One sequence on many GPUs: what a run of tokens does to a state, composed over ranks."""

import math

import torch

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.wkv7_functions import calls
from rwkv_lessons.lab.lessons.lesson_30.collectives import ring
from rwkv_lessons.lab.lessons.lesson_30.evidence import (
    exact_compose,
    exact_correct,
    exact_entries,
    exact_exit_gradients,
    exact_summary,
    gathered,
    gathered_gradients,
    log_decays,
    reading,
    two_maps,
    uneven_decays,
    written,
)


def summary(k, v, w):
    """What a rank's tokens do to the state of one head: S becomes A[:, None] * S + B.

    k, w are [T, K], w the log decay; v is [T, V]. Returns A, [K], and B, [K, V].
    """
    ### BEGIN SOLUTION
    total = w.cumsum(0)
    A = total[-1].exp()
    B = (k * (total[-1] - total).exp()).T @ v
    return A, B
    ### END SOLUTION


def compose(A1, B1, A2, B2):
    """A and B of the map that does first what A1, B1 do, and then what A2, B2 do.

    A1, A2 are [K], of decays; B1, B2 are [K, V].
    """
    ### BEGIN SOLUTION
    return A2 * A1, A2[:, None] * B1 + B2
    ### END SOLUTION


def gather(mine, rank, ranks, send, receive):
    """All ranks' tensors, in the order of the ranks: an all-gather, around a ring.

    Every rank calls it with its own tensor and its number. send(x, to) sends a tensor to rank `to`
    and returns at once; receive(source) waits for the next tensor from rank `source`. A rank sends
    only to the rank after it (the last one to rank 0), and at most ranks - 1 tensors.
    """
    found = [None] * ranks
    found[rank] = mine
    ### BEGIN SOLUTION
    for step in range(ranks - 1):
        send(found[(rank - step) % ranks], (rank + 1) % ranks)
        found[(rank - step - 1) % ranks] = receive((rank - 1) % ranks)
    ### END SOLUTION
    return found


def entries(A, B):
    """The state before each rank's tokens, [ranks, K, V], from all ranks' maps; rank 0 has zeros.

    A is [ranks, K], B is [ranks, K, V].
    """
    E = torch.zeros_like(B)
    ### BEGIN SOLUTION
    for p in range(1, len(A)):
        E[p] = A[p - 1][:, None] * E[p - 1] + B[p - 1]
    ### END SOLUTION
    return E


def reach(w, bits):
    """How many tokens an entry state reaches, with a decay of at least 2^-bits in any key.

    w is [T, K], the log decay. Token t reads through the decays of the tokens before it: token 0
    reads the entry state as it is.
    """
    ### BEGIN SOLUTION
    before = w.cumsum(0) - w
    return int((before >= -bits * math.log(2)).any(1).sum())
    ### END SOLUTION


def correct(o, r, w, E):
    """o, computed as if the state before these tokens were zero, made right for the entry state E.

    o is [T, V]; r, w are [T, K], w the log decay; E is [K, V].
    """
    ### BEGIN SOLUTION
    before = w.cumsum(0) - w
    return o + (r * before.exp()) @ E
    ### END SOLUTION


def exit_gradients(A, dE):
    """The gradient of the state after each rank's tokens, [ranks, K, V]; the last rank has zeros.

    A is [ranks, K]. dE is [ranks, K, V], what each rank's own outputs say about its entry state.
    """
    dS = torch.zeros_like(dE)
    ### BEGIN SOLUTION
    for p in reversed(range(len(A) - 1)):
        dS[p] = A[p + 1][:, None] * dS[p + 1] + dE[p + 1]
    ### END SOLUTION
    return dS


STATE = (("A", "i"), ("B", "ij"))
REACHED = (1, 2), (3, 7), (16, 24), (64, 40)  # keys, and bits

EXERCISES = {
    "summary": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "A = total[-1].exp()": "The product of all decays, as a sum of logs: one exp.",
                "B = (k * (total[-1] - total).exp()).T @ v": "Each k decays from just after its "
                "token to the end; then one matrix product adds up all tokens.",
            },
            instead={
                "The main pass": "already leaves B as its state when it starts from zero, so no "
                "rank has to compute B separately.",
            },
            stretch="Suppose a token has w = -inf. Which difference is NaN, and what would you "
            "sum instead?",
        ),
        hints=(
            "After T tokens, what is left of a state S? And of k[s]ᵀ v[s], written at token s?",
            "A is exp of the sum of all w. What token s wrote decays by the tokens after s: exp "
            "of the sum of their w. A running sum gives both.",
            "total = w.cumsum(0); A = total[-1].exp(); B = (k * (total[-1] - total).exp()).T @ v",
        ),
        evidence=(
            calls(
                exact_summary,
                STATE,
                ("one token", "by hand", written(1, 3, 2)),
                ("two tokens", "decays after", written(2, 4, 3)),
                ("40 tokens, more keys than values", "decays after", written(40, 9, 5)),
                ("no decay at all", "no decay", written(6, 4, 4, "none")),
                ("strong decays", "strong", written(20, 4, 6, "strong")),
                ("300 tokens, 130 keys", "long", written(300, 130, 3, "weak")),
            ),
        ),
        symptoms={
            "by hand": "With one token A is exp(w), and B is kᵀ v, which has not decayed yet.",
            "decays after": "What token s wrote decays with w[s + 1], …, but not with w[s].",
            "no decay": "Without decay A is 1, and B is the sum of all k[t]ᵀ v[t].",
            "strong": "Keep every factor at most 1: exp(-total) overflows if decays are strong.",
            "long": "It is right for few tokens and keys. Is there a number where T or K belongs?",
        },
    ),
    "compose": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return A2 * A1, A2[:, None] * B1 + B2": "What the first map left goes through "
                "the second's decays; what the second left does not.",
            },
            instead={
                "A tree": "takes log2(ranks) steps, because composing is associative; a loop "
                "takes one step per rank.",
            },
            stretch="RWKV-7's A is a matrix. Which products must keep their order?",
        ),
        hints=(
            "Put S ↦ A1 S + B1 into S ↦ A2 S + B2.",
            "A2 (A1 S + B1) + B2: which part multiplies S, and which does not?",
            "return A2 * A1, A2[:, None] * B1 + B2",
        ),
        evidence=(
            calls(
                exact_compose,
                STATE,
                ("one key, one value", "by hand", two_maps(1, 1)),
                ("4 keys, 3 values", "order", two_maps(4, 3)),
                ("as many keys as values", "rows", two_maps(5, 5)),
            ),
        ),
        symptoms={
            "by hand": "A2 (A1 S + B1) + B2.",
            "order": "The first map's B goes through the decays of the second map.",
            "rows": "A decay belongs to a key, a row of the state: A2[:, None].",
        },
    ),
    "gather": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "send(found[(rank - step) % ranks], (rank + 1) % ranks)": "Passes on the tensor "
                "that arrived last; in the first step that is the rank's own.",
                "found[(rank - step - 1) % ranks] = receive((rank - 1) % ranks)": "The tensor that "
                "arrives in step n has travelled n + 1 ranks.",
            },
            instead={
                "Everybody sends to everybody": "takes one step instead of ranks - 1, but a rank "
                "needs a connection to each of the others. On a ring all links are busy all the "
                "time, and each carries a tensor at most once.",
            },
            stretch="A reduce-scatter leaves on each rank the sum of one part over all ranks. "
            "Which line changes?",
        ),
        hints=(
            "Three ranks: rank 1 gets rank 0's tensor directly from rank 0. How does it get rank "
            "2's?",
            "In each of ranks - 1 steps, send on what arrived in the step before (first your own), "
            "and receive from the rank before you. Whose tensor is it?",
            "for step in range(ranks - 1): send(found[(rank - step) % ranks], (rank + 1) % ranks); "
            "found[(rank - step - 1) % ranks] = receive((rank - 1) % ranks)",
        ),
        evidence=(
            ring(
                ("two ranks", "two ranks", 2),
                ("three ranks", "three ranks", 3),
                ("one rank alone", "alone", 1),
                ("eight ranks", "three ranks", 8),
            ),
        ),
        symptoms={
            "two ranks": "Each rank sends its own tensor, then receives the other's. If both "
            "receive first, both wait for ever.",
            "three ranks": "In step n a rank sends on what it received in step n - 1. What it "
            "receives comes from the rank before it, and belongs to rank - n - 1, modulo ranks.",
            "alone": "One rank sends nothing and receives nothing.",
        },
    ),
    "entries": Exercise(
        minutes=6,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "E[p] = A[p - 1][:, None] * E[p - 1] + B[p - 1]": "The entry state of the rank "
                "before, taken through that rank's map.",
            },
            instead={
                "Send E from rank to rank": "stores one message less, but each rank waits for "
                "all those before it.",
            },
            stretch="Each rank needs only its own E. Which maps does rank p not need?",
        ),
        hints=(
            "Rank 0 starts from zero. What does rank 1 start from?",
            "From the state that rank 0 leaves: its map, applied to its own entry state. And so "
            "on, in order.",
            "E[p] = A[p - 1][:, None] * E[p - 1] + B[p - 1]",
        ),
        evidence=(
            calls(
                exact_entries,
                (("E", "pij"),),
                ("two ranks", "two ranks", gathered(2, 3, 2)),
                ("three ranks", "three ranks", gathered(3, 4, 4)),
                ("one rank alone", "alone", gathered(1, 3, 3)),
                ("eight ranks", "three ranks", gathered(8, 4, 3)),
                ("20 ranks", "three ranks", gathered(20, 3, 4)),
                ("150 ranks", "long", gathered(150, 2, 3)),
            ),
        ),
        symptoms={
            "two ranks": "Rank 1 starts from B of rank 0; rank 0's A multiplies zeros.",
            "three ranks": "Rank 2 starts from A[1] E[1] + B[1], which uses the maps of ranks 0 "
            "and 1.",
            "alone": "Rank 0 starts from zeros, however many ranks there are.",
            "long": "It is right for few ranks. Is there a number where the ranks belong? Products "
            "of many decays are 0: multiply by them, never divide.",
        },
    ),
    "reach": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "before = w.cumsum(0) - w": "Leaves out the token's own w, because it reads "
                "before it decays.",
            },
            instead={
                "Sums of chunks": "compares 64 tokens at a time. A decay that is below the line "
                "stays below, so the first such chunk is enough to know.",
            },
            stretch="Find a w for which cumsum(0) - w is wrong by much more than rounding.",
        ),
        hints=(
            "A decay is exp of a sum of w. Which sum does token t read through?",
            "The sum of the w before t. It falls from token to token, so count the tokens where "
            "it is at least -bits · log(2), in any key.",
            "before = w.cumsum(0) - w; return int((before >= -bits * math.log(2)).any(1).sum())",
        ),
        evidence=(
            function_cases(
                ("half at each token", (log_decays([[-1.0]] * 9), 3), 4),
                ("the slowest key counts", (log_decays([[-4.0, -1.0]] * 9), 3), 4),
                ("nothing decays", (log_decays([[0.0, -5.0]] * 9), 3), 9),
                ("all of it at once", (log_decays([[-40.0, -40.0]] * 9), 32), 1),
                ("a pause", (log_decays([[-1.0], [0.0], [0.0], [-4.0], [0.0]]), 3), 4),
                ("keys take turns", (log_decays([[-4.0, -1.0], [-1.0, -4.0]] * 4), 11), 6),
                ("keys forget together", (log_decays([[-2.0] * 5] * 9), 5), 3),
                more=[(uneven_decays(300, K, seed=K), bits) for K, bits in REACHED],
                whole=True,
            ),
        ),
        symptoms={
            "half at each token": "Tokens 0 to 3 read through 1, 1/2, 1/4, 1/8; 2^-3 still counts.",
            "the slowest key counts": "One key that remembers is enough: any, not all.",
            "nothing decays": "All tokens count, and no more than there are.",
            "all of it at once": "Token 0 reads before its own decay.",
            "keys take turns": "Add up each key's own w first, then take the slowest key.",
            "keys forget together": "Compare each key by itself, not the sum over keys.",
        },
    ),
    "correct": Exercise(
        minutes=6,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "return o + (r * before.exp()) @ E": "Only E is missing: what the tokens wrote "
                "themselves is in o already, because the recurrence is linear in the state.",
            },
            instead={
                "Only the first reach(w, bits) tokens": "gives the same to the last bit of o, "
                "for a few thousand tokens instead of all.",
            },
            stretch="A kernel for this can skip chunks with nothing left. Why does the host not "
            "need to know how many?",
        ),
        hints=(
            "o[t] lacks what token t reads of E. What has happened to E by then?",
            "Row i of E was multiplied by exp(w[s, i]) for all s < t. Put those decays into r.",
            "before = w.cumsum(0) - w; return o + (r * before.exp()) @ E",
        ),
        evidence=(
            calls(
                exact_correct,
                (("o", "tj"),),
                ("one token", "one token", reading(1, 3, 2)),
                ("two tokens", "decays before", reading(2, 4, 4)),
                ("40 tokens, more values than keys", "decays before", reading(40, 5, 9)),
                ("no decay at all", "one token", reading(6, 4, 4, "none")),
                ("strong decays", "decays before", reading(20, 4, 6, "strong")),
                ("a decay of exp(-120)", "underflow", reading(6, 4, 4, "one of -120")),
                ("300 tokens, 130 keys", "long", reading(300, 130, 3, "weak")),
            ),
        ),
        symptoms={
            "long": "It is right for few tokens and keys. Is there a number where T or K belongs?",
            "one token": "The first token reads E as it is: o + r E.",
            "decays before": "Token t reads through w[0] … w[t - 1], without its own.",
            "underflow": "exp(-120) is 0 in float32, and 0/0 is NaN: leave out a token's own w "
            "before the exp, not after it.",
        },
    ),
    "exit_gradients": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "dS[p] = A[p + 1][:, None] * dS[p + 1] + dE[p + 1]": "The state after rank p is "
                "the entry state of rank p + 1. Its gradient is what that rank's outputs "
                "contribute, plus what came back through that rank's map.",
            },
            instead={
                "Autograd through the gather": "runs the same loop inside torch: the backward of "
                "an all-gather is a sum over ranks.",
            },
            stretch="For RWKV-7 A is a matrix. What takes its place here?",
        ),
        hints=(
            "`entries` runs forward over the ranks. In which direction does a gradient run?",
            "From the last rank to the first. Rank p's state is read by rank p + 1's outputs, "
            "and continues through that rank's map.",
            "for p in reversed(range(len(A) - 1)): "
            "dS[p] = A[p + 1][:, None] * dS[p + 1] + dE[p + 1]",
        ),
        evidence=(
            calls(
                exact_exit_gradients,
                (("dS", "pij"),),
                ("two ranks", "two ranks", gathered_gradients(2, 3, 2)),
                ("three ranks", "three ranks", gathered_gradients(3, 4, 4)),
                ("one rank alone", "alone", gathered_gradients(1, 3, 3)),
                ("eight ranks", "three ranks", gathered_gradients(8, 4, 3)),
                ("20 ranks", "three ranks", gathered_gradients(20, 3, 4)),
                ("150 ranks", "long", gathered_gradients(150, 2, 3)),
            ),
        ),
        symptoms={
            "two ranks": "Nobody reads the last state. Rank 0's state is read by rank 1: dE[1].",
            "three ranks": "dS[0] = A[1] dS[1] + dE[1]: use A of the rank that the gradient "
            "passes.",
            "alone": "Nobody reads the state after the last rank: zeros.",
            "long": "It is right for few ranks. Is there a number where the ranks belong? Products "
            "of many decays are 0: multiply by them, never divide.",
        },
    ),
}
