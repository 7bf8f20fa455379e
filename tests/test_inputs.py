"""The inputs: the same for everyone, and as the models make them."""

import torch

from rwkv_lessons.inputs import rwkv5_inputs, rwkv6_inputs, tokens, words


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


def test_decay_comes_from_the_token():
    w, fixed = rwkv6_inputs(1, 500).w, rwkv5_inputs(1, 1).w
    assert w.dtype == torch.float32 and w.shape == (1, 500, 4, 64) and w.max() < 0
    shift = (w / fixed).log()
    assert 0.4 < shift.std() < 0.8 and abs(float(shift.mean())) < 0.1
    half = rwkv6_inputs(1, 3, dtype=torch.bfloat16)
    assert half.r.dtype == half.w.dtype == torch.bfloat16 and half.u.dtype == torch.float32
