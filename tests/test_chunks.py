"""Lesson 14: chunks in torch; what is shown is what is checked, and the counts are right."""

import nbformat
import pytest
import torch

from rwkv_lessons.inputs import rwkv6_inputs
from rwkv_lessons.lab import chunks, exercises
from rwkv_lessons.lab.evidence_chunks import Chunk, count, exact_scores, given
from rwkv_lessons.wkv6.reference import wkv6_reference

STEM = "14_chunks_by_hand"
lesson = exercises.solutions(STEM)


@pytest.mark.parametrize("C, L", [(4, 4), (8, 4), (24, 12), (24, 8)])
def test_the_lessons_chunks_are_the_recurrence(C, L):
    tokens = [x.double() for x in rwkv6_inputs(1, 24, 2, 8)]
    r, k, v, w = (x[0].transpose(0, 1) for x in tokens[:4])
    o, s1 = lesson.chunked(r, k, v, w, tokens[4][:, None], C, L)
    want, state = wkv6_reference(*tokens)
    torch.testing.assert_close(o.transpose(0, 1)[None], want)
    torch.testing.assert_close(s1[None], state)


@pytest.mark.parametrize("name", ["sums", "chunked"])
def test_the_notebook_shows_what_is_checked(name):
    cells = nbformat.read(exercises.NOTEBOOKS / f"{STEM}.ipynb", 4).cells
    shown = [cell.source for cell in cells if cell.id == name]
    assert shown and shown[0].endswith(exercises.source_of(getattr(lesson, name)))


def test_the_exact_scores_follow_the_recurrence():
    r, k, v, w, s = given(Chunk("", "", 2, 6, 4))
    o, _ = wkv6_reference(*(x.double().transpose(0, 1)[None] for x in (r, k, v, w)), 0 * r[:, 0])
    torch.testing.assert_close(o[0].transpose(0, 1), exact_scores(r, k, w) @ v.double())


def test_the_count_is_of_exps_and_products():
    x = torch.ones(3, 5)
    counted = count(lambda: (x.exp() @ x.T, x[None].expand(2, 3, 5) @ x.T))
    assert counted.exps == 15
    assert counted.flops == 2 * 3 * 3 * 5 + 2 * 2 * 3 * 3 * 5


def test_the_reach_is_where_a_product_ends():
    """… to within a token: nobody reads the last key, and the first query reads nothing."""
    for C, m, part in ((64, 0, 1), (64, 32, 2), (16, 8, 2)):
        limit = part * chunks.LIMIT / C * torch.tensor(2.0).log()
        for share, finite in ((0.97, True), (1.2, False)):
            x, w = torch.ones(C, 1), torch.full((C, 1), -float(limit * share))
            assert bool(lesson.product(x, x, w, m).isfinite().all()) == finite, (C, m, share)
