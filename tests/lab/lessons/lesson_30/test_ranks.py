"""Lesson 30's checks accept right answers of another shape."""

import torch

from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.lessons.lesson_30 import evidence as ranks
from rwkv_lessons.wkv6 import wkv6_reference


def accepted(id, function):
    result = evaluate(f"30_many_gpus.{id}", function)
    assert result.passed, str(result)
    return True


def by_loop(k, v, w):
    A, B = torch.ones(k.shape[1]), torch.zeros(k.shape[1], v.shape[1])
    for t in range(len(k)):
        A, B = A * torch.exp(w[t]), torch.exp(w[t])[:, None] * B + k[t][:, None] * v[t][None]
    return A, B


def through_diagonals(A1, B1, A2, B2):
    return torch.diagonal(torch.diag(A2) @ torch.diag(A1)), torch.diag(A2) @ B1 + B2


def by_composing(A, B):
    E, found = 0 * B[0], []
    for p in range(len(A)):
        found.append(E)
        E = torch.diag(A[p]) @ E + B[p]
    return torch.stack(found)


def token_by_token(w, bits):
    left, count = torch.ones(w.shape[1]), 0
    for row in w:
        if float(left.max()) < 2.0**-bits:
            break
        count += 1
        left = left * row.exp()
    return count


def carried(o, r, w, E):
    rows = []
    for t in range(len(o)):
        rows.append(o[t] + r[t] @ E)
        E = w[t].exp()[:, None] * E
    return torch.stack(rows)


def by_autograd(A, dE):
    B = torch.zeros_like(dE).requires_grad_()
    return torch.autograd.grad(by_composing(A, B), B, dE)[0]


def suffixes_added_up(A, dE):
    """One sum for each rank: the work grows with the square of the ranks."""
    dS = torch.zeros_like(dE)
    for p in range(len(A)):
        for q in range(p + 1, len(A)):
            dS[p] += A[p + 1 : q].prod(0)[:, None] * dE[q]
    return dS


def passed_on(mine, rank, ranks, send, receive):
    found = [mine]
    while len(found) < ranks:
        send(found[-1], (rank + 1) % ranks)
        found.append(receive((rank - 1) % ranks))
    return torch.stack([found[(rank - n) % ranks] for n in range(ranks)])


def test_right_answers_of_another_shape_are_accepted():
    assert accepted("summary", by_loop)
    assert accepted("compose", through_diagonals)
    assert accepted("entries", by_composing)
    assert accepted("reach", token_by_token)
    assert accepted("correct", carried)
    assert accepted("exit_gradients", by_autograd)
    assert accepted("exit_gradients", suffixes_added_up)
    assert accepted("gather", passed_on)


def test_the_map_of_a_run_is_what_the_reference_does_to_a_state():
    k, v, w = (x.double() for x in ranks.written(20, 6, 5)())
    A, B = ranks.exact_summary(k, v, w)
    s0 = torch.randn(6, 5, dtype=torch.float64)
    heads = [x[None, :, None] for x in (k, k, v, w)]
    _, s1 = wkv6_reference(*heads, torch.zeros(1, 6, dtype=torch.float64), s0[None, None])
    assert torch.allclose(s1[0, 0], A[:, None] * s0 + B)
