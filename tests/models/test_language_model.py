"""A language model is token by token what it is in parallel, and a run goes on where it was."""

import math
from functools import partial

import pytest
import torch

from rwkv_lessons.models import reverse
from rwkv_lessons.models import text as writer
from rwkv_lessons.models.rwkv6 import Model, Plan, Sizes, groups, loss_of, stream, train, write
from rwkv_lessons.models.tasks import (
    ASK,
    END,
    alphabet,
    passages,
    reversal,
    reversed_right,
    spelled,
    text,
)
from rwkv_lessons.wkv6 import wkv6_reference

SIZES = Sizes(vocabulary=12, width=32, layers=2, head=16)
LINES = partial(reversal, batch=8, longest=3)


@pytest.fixture(autouse=True)
def one_thread():
    """Small sums: threads would wait for each other, most of all beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(seed=0, sizes=SIZES):
    torch.manual_seed(seed)
    return Model(sizes)


def moved(made):
    """With parameters of any size: at the start blocks add nothing, which would hide mistakes."""
    g = torch.Generator().manual_seed(1)
    for x in made.parameters():
        x.data += 0.3 * torch.randn(x.shape, generator=g) * x.abs().mean().clamp(min=0.3)
    return made


def test_a_token_at_a_time_is_all_tokens_at_once():
    made = moved(model()).double()
    tokens = torch.randint(12, (2, 9), generator=torch.Generator().manual_seed(2))
    together, _ = made(tokens)
    state, apart = None, []
    for t in range(9):
        logits, state = made(tokens[:, t : t + 1], state, wkv6_reference)
        apart.append(logits)
    assert torch.allclose(together, torch.cat(apart, 1), rtol=1e-9, atol=1e-9)


def test_every_parameter_learns_something():
    made = moved(model())
    loss_of(made, *LINES(0)).backward()
    still = [name for name, x in made.named_parameters() if not x.grad.abs().sum() > 0]
    assert not still


def test_it_starts_with_even_odds():
    # The head is orthogonal: logits are of 0.5 and less, which moves the odds of 12 by a few %.
    assert abs(loss_of(model(), *LINES(0)).item() - math.log(12)) < 0.2


def test_plain_torch_learns_the_same():
    losses = []
    for mix in (None, wkv6_reference):
        made = model()
        made.mix = mix or made.mix
        losses.append([float(loss) for _, loss in train(made, LINES, Plan(steps=4))])
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # float32, through four steps of Adam


def test_an_interrupted_run_ends_as_a_whole_one(tmp_path):
    plan, file = Plan(steps=6, warm_up=2), tmp_path / "checkpoint.pt"
    whole, begun, gone_on = model(), model(), model(seed=5)
    for _ in train(whole, LINES, plan):
        pass
    for step, _ in train(begun, LINES, plan, file, every=2):
        if step == 4:
            break  # the checkpoint is of step 4
    steps = [step for step, _ in train(gone_on, LINES, plan, file, every=2)]
    assert steps == [4, 5]
    pairs = zip(whole.parameters(), gone_on.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def test_only_matrices_decay_and_decays_learn_twice_as_fast():
    made = model()
    found = {(g["times"], g["weight_decay"] > 0): g["params"] for g in groups(made, Plan(steps=1))}
    assert found.keys() == {(2, False), (1, True), (1, False)}
    assert [x.shape for x in found[2, False]] == [(32,)] * 2
    assert all(x.ndim == 2 for x in found[1, True])
    assert sum(map(len, (g["params"] for g in groups(made, Plan(1))))) == len([*made.parameters()])


def test_what_is_written_is_what_is_likeliest_at_each_token():
    made = moved(model())
    prompt = torch.randint(12, (2, 4), generator=torch.Generator().manual_seed(3))
    written = write(made, prompt, 5, mix=wkv6_reference)
    for n in range(5):
        logits, _ = made(torch.cat([prompt, written[:, :n]], 1))
        assert torch.equal(logits[:, -1].argmax(-1), written[:, n])
    drawn = [
        write(made, prompt, 5, temperature=2.0, generator=torch.Generator().manual_seed(n))
        for n in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_lines_are_reversed():
    tokens, answers = reversal(3, 20, 6, shortest=2)
    for line, counts in zip(tokens.tolist(), answers, strict=True):
        n = line.index(ASK)
        assert 2 <= n <= 6 and line[:n][::-1] == line[n + 1 : 2 * n + 1]
        assert set(line[2 * n + 1 :]) == {END}
        assert counts.nonzero().flatten().tolist() == list(range(n, 2 * n + 1))
    assert torch.equal(reversal(3, 20, 6, 2)[0], tokens)
    assert not torch.equal(reversal(4, 20, 6, 2)[0], tokens)


def test_a_line_is_right_only_if_all_of_it_is():
    class Knows:
        def __call__(self, tokens):
            whole = reversal(2, 16, 2, 2, seed=1)[0]
            logits = torch.nn.functional.one_hot(whole[:, 1:], 12).float()
            logits[0, 3] = -logits[0, 3]  # one digit of one line
            return logits, None

    assert reversed_right(Knows(), 2, 16, seed=1) == 15 / 16


def test_passages_are_of_the_text():
    tokens, counts = passages(0, 2, 30)
    assert tokens.shape == (2, 31) and counts is None
    assert spelled(tokens[0]) in text() and alphabet() == "".join(sorted(alphabet()))


def test_the_recorded_run_was_right_on_all_lengths_it_was_trained_on():
    kept = reverse.curve()
    trained = [kept["right"][str(n)] for n in range(1, kept["longest"] + 1)]
    assert min(trained) == 1.0
    assert kept["processor_seconds"] < 300  # of one core; the machine had other work, too
    assert len(kept["losses"]) == reverse.PLAN.steps and kept["losses"][-1] < 0.01


def test_the_model_that_comes_along_reverses_digits():
    model = reverse.learned()
    assert ["".join(reverse.answer(model, x)) for x in ("7", "314", "271828")] == [
        "7",
        "413",
        "828172",
    ]
    with pytest.raises(ValueError, match="digits must be a text such as '314', got '3a'"):
        next(reverse.answer(model, "3a"))


def test_the_model_that_comes_along_writes_words_of_its_text():
    model, letters = writer.learned()
    written = "".join(writer.story(model, letters, "The value of ", 40, temperature=0.0))
    words = written.split()[:-1]  # the last one may be cut
    assert len(words) > 3 and all(word in text() for word in words)
    with pytest.raises(ValueError, match="begin must be at least one character"):
        next(writer.story(model, letters, "", 1))
    with pytest.raises(ValueError, match="letters, got 'ж'"):
        next(writer.story(model, letters, "ж", 1))


def test_a_stream_gives_what_write_returns():
    made = moved(model())
    prompt = torch.randint(12, (2, 4), generator=torch.Generator().manual_seed(5))
    tokens = list(stream(made, prompt, 3, mix=wkv6_reference))
    assert torch.equal(torch.cat(tokens, 1), write(made, prompt, 3, mix=wkv6_reference))
