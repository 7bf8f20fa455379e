"""Lessons 15 to 17: chunks in torch and in Triton; what is shown is what is checked."""

import nbformat
import pytest
import torch

from rwkv_lessons.inputs import rwkv6_inputs
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.evidence.chunks import Chunk, count, exact_scores, given
from rwkv_lessons.lab.pictures import chunks
from rwkv_lessons.wkv6.reference import wkv6_reference

STEM = "15_chunks_by_hand"
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


def test_tf32_keeps_ten_bits():
    x = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-12, 1 + 3 * 2**-12, -3.0e30, 0.0])
    want = torch.tensor([1.0, 1 + 2**-10, 1.0, 1.0])  # cut off, not rounded
    assert torch.equal(chunks.tf32(x)[:4], want)
    assert torch.equal(chunks.tf32(chunks.tf32(x)), chunks.tf32(x))
    assert ((chunks.tf32(x) - x).abs() <= x.abs() * 2**-10).all()


def test_both_kernels_of_lesson_16_give_autograds_gradients():
    pytest.importorskip("triton")
    module = exercises.solutions("17_chunked_gradients")
    kernels = module.checkpoints, module.backward_sweep
    found, wants = module.all_gradients(*kernels, module.Size((1, 21, 2, 8, 8)), BT=8)
    assert set(wants) == {"dr", "dk", "dv", "dw", "du", "ds0"}
    for name, want in wants.items():
        assert (found[name] - want).abs().max() <= 1e-5 * want.abs().max(), name


def test_lesson_15_goes_on_from_the_state_that_it_left():
    pytest.importorskip("triton")
    from warplens.triton import run as interpreter

    module = exercises.solutions("16_the_chunked_kernel")
    whole = module.sized(module.Size((1, 13, 2, 8, 8)), BT=4)
    want, parts = whole.wants, []
    s0 = whole.inputs["s0"]
    for tokens in (slice(0, 6), slice(6, 13)):
        given = whole.arguments() | {"s0": s0}
        given |= {x: given[x][:, tokens].contiguous() for x in "rkvwo"}
        interpreter.run(module.kernel, whole.grid, **(given | {"T": given["r"].shape[1]}))
        parts, s0 = [*parts, given["o"]], given["s1"]
    torch.testing.assert_close(torch.cat(parts, 1).double(), want["o"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(s0.double(), want["s1"], rtol=1e-5, atol=1e-5)
