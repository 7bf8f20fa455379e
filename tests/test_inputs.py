"""Inputs are the same every time, and as a model of the published initialisation makes them."""

import math

import pytest
import torch

from rwkv_lessons.inputs import (
    SWING,
    rwkv5_bonus,
    rwkv5_decay,
    rwkv5_inputs,
    rwkv6_inputs,
    rwkv6_training_inputs,
    tokens,
    words,
)


def test_shapes_and_dtypes():
    x = rwkv5_inputs(2, 5, H=3, N=8, dtype=torch.bfloat16)
    assert [y.shape for y in x] == [(2, 5, 3, 8)] * 3 + [(3, 8)] * 2
    assert [y.dtype for y in x] == [torch.bfloat16] * 3 + [torch.float32] * 2
    assert all(y.is_contiguous() for y in x)


def test_same_arguments_same_values_and_seed_and_offset_matter():
    one, two = rwkv5_inputs(2, 9, H=2, N=8), rwkv5_inputs(2, 9, H=2, N=8)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one.r, rwkv5_inputs(2, 9, H=2, N=8, seed=1).r)
    assert not torch.equal(one.r, rwkv5_inputs(2, 9, H=2, N=8, offset=50).r)


def test_passages_follow_each_other_in_the_text():
    x = rwkv5_inputs(3, 7, H=1, N=8)
    later = rwkv5_inputs(1, 7, H=1, N=8, offset=14)
    torch.testing.assert_close(x.k[2:], later.k)


def test_the_text_starts_again_at_its_end():
    text, words = tokens()
    assert len(text) > 100_000 and int(text.max()) == words - 1
    x = rwkv5_inputs(1, 4, H=1, N=8, offset=len(text))
    torch.testing.assert_close(x.v, rwkv5_inputs(1, 4, H=1, N=8).v)


def test_a_token_sees_itself_and_the_one_before():
    """Token shift: equal pairs of tokens give equal rows, wherever they stand."""
    text, _ = tokens()
    pairs = {}
    for t in range(1, 200):
        pairs.setdefault((int(text[t - 1]), int(text[t])), []).append(t)
    first, again = next(places[:2] for places in pairs.values() if len(places) > 1)
    v = rwkv5_inputs(1, 200, H=1, N=8).v[0]
    torch.testing.assert_close(v[first], v[again])


def test_projections_keep_the_size_of_what_the_mixing_lets_through():
    """Orthogonal matrices: of size 1 for r and v, a tenth of that for k (whose mix is v's here)."""
    x = rwkv5_inputs(1, 50, H=2, N=32, layer=0)
    ratio = x.k.norm(dim=(2, 3)) / x.v.norm(dim=(2, 3))
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("depth, middle", [(0, 0.5**0.7), (1, 0.25)])
def test_decay_and_bonus_follow_the_published_formulas(depth, middle):
    """By hand at the first, the middle and the last of three channels."""
    want = [-math.exp(-6), -math.exp(-6 + 5 * middle), -math.exp(-1)]
    torch.testing.assert_close(rwkv5_decay(3, depth), torch.tensor(want))
    zigzag = [0.0, 0.1, -0.1]
    want = [depth * (1 - n / 2) + zigzag[n] for n in range(3)]
    torch.testing.assert_close(rwkv5_bonus(3, depth), torch.tensor(want))


def test_rwkv6_is_rwkv5_with_a_decay_that_swings_with_the_data():
    five, six = rwkv5_inputs(2, 200, H=2), rwkv6_inputs(2, 200, H=2)
    for name in "rkvu":
        assert torch.equal(getattr(five, name), getattr(six, name))
    assert six.w.shape == six.r.shape and six.w.is_contiguous() and (six.w < 0).all()
    swing = (six.w / five.w).log()  # of exponents: w = -exp(rate + swing)
    torch.testing.assert_close(swing.std(), torch.tensor(SWING), rtol=0.2, atol=0)
    assert rwkv6_inputs(1, 3, H=1, N=8, dtype=torch.bfloat16).w.dtype == torch.bfloat16


def test_rwkv6_decay_depends_on_the_token_and_the_one_before():
    text, _ = tokens()
    pairs = {}
    for t in range(1, 200):
        pairs.setdefault((int(text[t - 1]), int(text[t])), []).append(t)
    first, again = next(places[:2] for places in pairs.values() if len(places) > 1)
    w = rwkv6_inputs(1, 200, H=1, N=8).w[0]
    torch.testing.assert_close(w[first], w[again])
    assert not torch.allclose(w[first], w[first + 1])


def test_v_of_float16_is_an_eighth_where_gradients_are_timed():
    for dtype, share in ((torch.float16, 8), (torch.bfloat16, 1)):
        whole = rwkv6_inputs(1, 3, H=1, N=8, dtype=dtype)
        for name, x in rwkv6_training_inputs(1, 3, H=1, N=8, dtype=dtype)._asdict().items():
            assert torch.equal(x * (share if name == "v" else 1), getattr(whole, name))


def test_a_layer_that_is_not_there():
    with pytest.raises(ValueError, match="layer must be in 0 … n_layer - 1 = 11, got 12"):
        rwkv5_inputs(1, 2, layer=12)


@pytest.mark.gpu
def test_every_device_gets_the_same_values():
    """Up to float32 rounding in the products of width 128."""
    for a, b in zip(rwkv5_inputs(1, 9, H=2), rwkv5_inputs(1, 9, H=2, device="cuda"), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-4, atol=1e-5)


def test_the_text_is_cut_without_a_loss():
    numbers, different = tokens()
    assert len(numbers) == len(words()) and different == len(set(words()))
    assert {"assert", " ", "\n\n"} < set(words())


def test_both_models_read_the_same_tokens():
    five, six = (f(2, 7, 2, 8, layer=3, offset=5, seed=1) for f in (rwkv5_inputs, rwkv6_inputs))
    for x, y in ((five.r, six.r), (five.k, six.k), (five.v, six.v), (five.u, six.u)):
        assert torch.equal(x, y)
    again = rwkv6_inputs(2, 7, 2, 8, layer=3, offset=5, seed=1)
    assert all(torch.equal(x, y) for x, y in zip(six, again, strict=True))
    later = rwkv6_inputs(1, 6, 2, 8, layer=3, offset=6, seed=1)
    torch.testing.assert_close(later.w[:, 1:], six.w[:1, 2:])  # of the same words, but the first
