"""An RWKV-7 checkpoint writes: one block against float64, batches, states, sampling, errors."""

import os
import signal

import pytest
import torch

from rwkv_lessons.models import generate
from rwkv_lessons.models.generate import Generation, choose
from rwkv_lessons.models.rwkv7 import Rwkv7, random_weights, read_checkpoint
from rwkv_lessons.models.vocabulary import World

SMALL = {"layers": 2, "heads": 2, "N": 16, "rank": 4}
VOCABULARY = "1 'a' 1\n2 'ab' 2\n3 'abc' 3\n4 b'\\xe4' 1\n5 b'\\xbd\\xa0' 2\n6 'b' 1\n\n"


@pytest.fixture(autouse=True)
def one_thread():
    """Small sums: threads would wait for each other, most of all beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(random_weights(**SMALL), tmp_path / "small.pth")
    return str(tmp_path / "small.pth")


def float64_logits(weights, tokens):
    """Logits after the last of the tokens: a model of one layer as its equations stand, token by
    token and head by head, in float64."""
    p = {name: x.double().squeeze() for name, x in weights.items()}
    H, N = p["blocks.0.att.r_k"].shape
    att = {name.removeprefix("blocks.0.att."): x for name, x in p.items() if ".att." in name}

    def norm(x, name):
        x = x - x.mean()
        return x / (x.square().mean() + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]

    last = last_ffn = torch.zeros(H * N, dtype=torch.float64)
    S = torch.zeros(H, N, N, dtype=torch.float64)  # values × keys, as the paper has it
    for token in tokens:
        x = norm(p["emb.weight"][token], "blocks.0.ln0")
        y = norm(x, "blocks.0.ln1")
        r_, w_, k_, v_, a_, g_ = (y + (last - y) * att[f"x_{name}"] for name in "rwkvag")
        r, k, v = att["receptance.weight"] @ r_, att["key.weight"] @ k_, att["value.weight"] @ v_
        w = att["w0"] + torch.tanh(w_ @ att["w1"]) @ att["w2"]
        w = torch.exp(-(torch.tensor(-0.5).double().exp()) / (1 + torch.exp(-w)))
        a = 1 / (1 + torch.exp(-(att["a0"] + a_ @ att["a1"] @ att["a2"])))
        g = (1 / (1 + torch.exp(-(g_ @ att["g1"])))) @ att["g2"]
        kk, k = k * att["k_k"], k * (1 + (a - 1) * att["k_a"])
        out = []
        for h in range(H):
            part = slice(h * N, h * N + N)
            unit = kk[part] / kk[part].norm()
            removed = torch.outer(S[h] @ unit, unit * a[part])
            S[h] = S[h] * w[part] - removed + torch.outer(v[part], k[part])
            o = S[h] @ r[part]
            o = (o - o.mean()) / (o.var(correction=0) + 64e-5).sqrt()
            o = o * att["ln_x.weight"][part] + att["ln_x.bias"][part]
            out.append(o + (r[part] * k[part] * att["r_k"][h]).sum() * v[part])
        x, last = x + att["output.weight"] @ (torch.cat(out) * g), y
        y = norm(x, "blocks.0.ln2")
        key = torch.relu(
            p["blocks.0.ffn.key.weight"] @ (y + (last_ffn - y) * p["blocks.0.ffn.x_k"])
        )
        x, last_ffn = x + p["blocks.0.ffn.value.weight"] @ key**2, y
    return p["head.weight"] @ norm(x, "ln_out")


@pytest.mark.parametrize("length", [1, 9, 40])  # stepped through, and in chunks
def test_a_block_is_its_equations_in_float64(length):
    weights = random_weights(**SMALL | {"layers": 1})
    prompts = torch.randint(256, (2, length), generator=torch.Generator().manual_seed(length))
    model = Rwkv7(weights)
    logits = model(prompts.flatten(), [length] * 2, [1, 0], model.states(2))
    for row, prompt in zip(logits, prompts, strict=True):
        want = float64_logits(weights, prompt)
        assert (row.double() - want).norm() < 2e-6 * want.norm()  # float32: 6e-8 a rounding


def test_a_sequence_is_the_same_alone_in_a_batch_and_in_pieces():
    model = Rwkv7(random_weights(**SMALL))
    batch, alone = Generation(model, 3), Generation(model, 1)
    batch.feed({0: [1, 2, 3, 4, 5], 1: [9] * 30, 2: [7]})
    for piece in ([1, 2], [3], [4, 5]):
        alone.feed({0: piece})
    for _ in range(12):
        many, one = batch.draw(1.0, 0.9), alone.draw(1.0, 0.9)
        torch.testing.assert_close(batch.logits[0], alone.logits[0], rtol=1e-4, atol=1e-4)
        assert many[0] == one[0]
        batch.feed({n: [token] for n, token in many.items()})
        alone.feed({0: [one[0]]})


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-39, 1e-31, 1e-29, 1e-3])
def test_at_a_low_temperature_the_likeliest_token_is_drawn(temperature):
    logits = torch.tensor([[0.0, -50.0, 40.0, 39.0], [9.0, -1.0, 2.0, 3.0]])
    for top_p in (0.5, 1):
        assert choose(logits, temperature, top_p, torch.full((2,), 0.7)).tolist() == [2, 0]


def test_draws_follow_the_odds_of_the_fewest_tokens_that_reach_top_p():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().expand(1000, -1)
    uniform = (torch.arange(1000) + 0.5) / 1000

    def counts(temperature, top_p):
        return choose(logits, temperature, top_p, uniform).bincount(minlength=4).tolist()

    assert counts(1.0, 1.0) == [100, 500, 150, 250]
    assert counts(1.0, 0.7) == [0, 667, 0, 333]  # 0.5 and 0.25 reach it
    assert counts(1.0, 0.01) == counts(0, 1.0) == [0, 1000, 0, 0]
    odds = torch.tensor([0.1, 0.5, 0.15, 0.25]) ** 2
    want = 1000 * odds / odds.sum()
    assert (torch.tensor(counts(0.5, 1.0)) - want).abs().max() <= 1


def test_no_draw_is_a_token_without_odds():
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    for top_p in (1.0, 0.9):
        drawn = {int(choose(logits, 1.0, top_p, torch.tensor([u]))) for u in (0.0, 0.4, 0.6, 1.0)}
        assert drawn == {0, 2}


def run(capsys, checkpoint, *given):
    status = generate.main([checkpoint, "--bytes", *given])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("prompts", [("Hi",), ("Hi", "A longer one, in chunks")])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    capsys, checkpoint, tmp_path, monkeypatch, prompts
):
    given = [x for text in prompts for x in ("--prompt", text)]
    state, printed, drawn = str(tmp_path / "state"), [], generate.Generation.draw

    def recorded(self, *rest):
        tokens = drawn(self, *rest)
        printed.append(tokens)
        if len(printed) == 5 and interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        return tokens

    monkeypatch.setattr(generate.Generation, "draw", recorded)
    interrupts = False
    assert run(capsys, checkpoint, *given, "--count", "12")[0] == 0
    whole, interrupts = list(printed), True
    printed.clear()
    status, _, err = run(capsys, checkpoint, *given, "--count", "12", "--state", state)
    assert status == 130 and len(printed) == 5
    assert f"interrupted after {5 * len(prompts)} tokens; {state} goes on" in err
    assert run(capsys, checkpoint, "--count", "7", "--state", state)[0] == 0
    assert printed == whole and len({x[0] for x in whole}) > 3


def test_a_character_that_was_cut_is_completed_later(capsys, checkpoint, tmp_path, monkeypatch):
    tokens = list("é你🙂".encode())
    monkeypatch.setattr(generate.Generation, "draw", lambda self, *_: {0: tokens.pop(0)})
    state, text = str(tmp_path / "state"), ""
    for count in (1, 3, 5):
        given = ("--count", str(count), "--state", state)
        prompt = () if text else ("--prompt", "x")
        text += run(capsys, checkpoint, *prompt, *given)[1].removesuffix("\n") or "-"
    assert text == "-é你🙂"


def test_a_batch_is_printed_line_by_line(capsys):
    printer = generate.Printer([b"", b""])
    for n, data in ((0, b"one\ntw"), (1, b"uno"), (0, b"o\n"), (1, b"")):
        printer(n, data)
    printer.end()
    assert capsys.readouterr().out == "0| one\n0| two\n1| uno\n"


def test_a_finished_sequence_keeps_its_state(monkeypatch):
    writing = Generation(Rwkv7(random_weights(**SMALL)), 2)
    writing.feed({0: [1], 1: [2]})
    monkeypatch.setattr(generate, "choose", lambda *_: torch.tensor([0, 5]))
    assert writing.draw(end=0) == {1: 5}
    before = writing.states.wkv.clone()
    writing.feed({1: [5]})
    assert torch.equal(writing.states.wkv[:, 0], before[:, 0])
    assert not torch.equal(writing.states.wkv[:, 1], before[:, 1])
    monkeypatch.setattr(generate, "choose", lambda logits, *_: logits.argmax(-1))
    assert list(writing.draw(end=0)) == [1]


def test_the_vocabulary_takes_the_longest_token(tmp_path):
    (tmp_path / "vocabulary").write_text(VOCABULARY)
    world = World(tmp_path / "vocabulary")
    assert world.encode("abcabab你") == [3, 2, 2, 4, 5]
    assert b"".join(map(world.bytes_of, [3, 2, 4, 5])).decode() == "abcab你"
    with pytest.raises(ValueError, match=r"no token of the vocabulary starts the bytes b'c'"):
        world.encode("ac")


def test_the_bound_counts_weights_once_and_states_twice():
    weights = random_weights(**SMALL)
    model = Rwkv7(weights, torch.bfloat16)
    read, states = model.bytes_per_step(3)
    embedding = weights["emb.weight"].numel()
    assert read == 2 * (sum(x.numel() for x in weights.values()) - embedding + 3 * 32)
    assert states == 3 * 2 * (2 * 2 * 16 * 16 * 4 + 2 * 2 * 32 * 2)
    told = generate.speeds(model, 3, 30, 10, 2.0, 1e9)
    bound = 3e9 / (read + states)
    assert told.startswith(f"30 tokens in 2.00 s: 15.0 tokens/s, {1500 / bound:.3g}% of the memory")
    assert f"{bound:,.1f} tokens/s" in told
    assert generate.speeds(model, 3, 30, 10, 2.0, None) == "30 tokens in 2.00 s: 15.0 tokens/s"


def changed(**tensors):
    return random_weights(**SMALL) | {name.replace("__", "."): x for name, x in tensors.items()}


def without(name):
    weights = random_weights(**SMALL)
    del weights[name]
    return weights


WRONG_CHECKPOINTS = {
    "must be a dictionary of tensors": [1, 2],
    "RWKV-6, expected RWKV-7": changed(blocks__0__att__time_maa_x=torch.ones(1)),
    "the file starts with model.embeddings": {"model.embeddings": torch.ones(3, 4)},
    "blocks.1.att.v1 is missing; the file has 2 layers": without("blocks.1.att.v1"),
    r"blocks.0.att.w2 must be \[4, 32\], got \[5, 32\]": changed(
        blocks__0__att__w2=torch.ones(5, 32)
    ),
    "blocks.0.ffn.s_emb.weight is not a tensor of": changed(
        blocks__0__ffn__s_emb__weight=torch.ones(1)
    ),
}


@pytest.mark.parametrize("message", WRONG_CHECKPOINTS)
def test_a_wrong_checkpoint_is_refused_by_name(tmp_path, message):
    torch.save(WRONG_CHECKPOINTS[message], tmp_path / "wrong.pth")
    with pytest.raises(ValueError, match=f"wrong.pth: .*{message}"):
        read_checkpoint(tmp_path / "wrong.pth")
    whole = (tmp_path / "wrong.pth").read_bytes()
    (tmp_path / "part.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a zip archive; if it was downloaded, it may be incompl"):
        read_checkpoint(tmp_path / "part.pth")


def test_the_first_layer_needs_no_share_of_its_own_value():
    weights = random_weights(**SMALL)
    for name in ("v0", "v1", "v2"):
        del weights[f"blocks.0.att.{name}"]
    model = Rwkv7(weights)
    assert model(torch.tensor([1]), [1], [0], model.states(1)).shape == (1, 256)


@pytest.mark.parametrize(
    "given, message",
    [
        (("--bytes",), "needs --prompt TEXT, or --state"),
        (("--bytes", "--prompt", ""), "at least one character"),
        (("--prompt", "x"), "--vocabulary --bytes is required"),
        (("--bytes", "--prompt", "x", "--top-p", "0"), "above 0 and up to 1"),
        (("--bytes", "--prompt", "x", "--temperature", "-1"), "at least 0"),
        (("--bytes", "--prompt", "x", "--seed", "9" * 20), "from 0 to 1000000000000"),
        (("--bytes", "--prompt", "x", "--device", "gpu"), "--device 'gpu': needs cpu, cuda"),
        (("--bytes", "--prompt", "x", "--device", "meta"), "needs cpu, cuda or cuda:N"),
        (("--vocabulary", "nowhere", "--prompt", "x"), "cannot be read as a vocabulary"),
        (
            ("--vocabulary", "{tmp}/bad", "--prompt", "x"),
            "line 2: expected a number, a quoted string",
        ),
        (("--vocabulary", "{tmp}/large", "--prompt", "a"), "up to 300, the model only up to 255"),
        (("--bytes", "--state", "{tmp}/bad"), "damaged, or no saved states; use a new file"),
        (("--bytes", "--state", "{tmp}"), "Is a directory"),
        (("--bytes", "--state", "{tmp}/small.pth"), "that this command wrote"),
    ],
)
def test_a_wrong_argument_is_a_line(capsys, checkpoint, tmp_path, given, message):
    (tmp_path / "bad").write_text("1 'a' 1\n2 'ab' 3\n")
    (tmp_path / "large").write_text("300 'a' 1\n")
    with pytest.raises(SystemExit, match="2"):
        generate.main([checkpoint, *(x.format(tmp=tmp_path) for x in given)])
    assert message in capsys.readouterr().err


def test_states_of_another_model_or_batch_are_refused(capsys, checkpoint, tmp_path):
    state = str(tmp_path / "state")
    run(capsys, checkpoint, "--prompt", "x", "--count", "1", "--state", state)
    other = str(tmp_path / "other.pth")
    torch.save(random_weights(**SMALL, seed=1), other)
    for model, prompts, message in (
        (other, ("--prompt", "x"), "states of another model"),
        (checkpoint, ("--prompt", "x", "--prompt", "y"), ", 1, or none, got 2"),
    ):
        with pytest.raises(SystemExit):
            run(capsys, model, *prompts, "--state", state)
        assert message in capsys.readouterr().err


def test_a_gpu_compiles_before_a_clock_starts():
    calls = []

    class Model:
        device = torch.device("cuda")

        def states(self, slots):
            return slots

        def __call__(self, tokens, *places):
            calls.append((len(tokens), *places))
            return torch.zeros(1, 1)

    generate.warm_up(Model())
    assert calls == [(17, [17], [0], 1), (1, [1], [0], 1)]
    Model.device = torch.device("cpu")
    generate.warm_up(Model())
    assert len(calls) == 2


@pytest.mark.gpu
def test_a_gpu_writes_the_tokens_of_a_cpu(tmp_path, capsys):
    torch.save(random_weights(), tmp_path / "small.pth")
    texts = []
    for device in ("cpu", "cuda"):
        arguments = [str(tmp_path / "small.pth"), "--bytes", "--prompt", "ab" * 20, "--prompt", "x"]
        arguments += ["--temperature", "0", "--count", "30", "--dtype", "float32"]
        for state in (tmp_path / device, tmp_path / device):  # and goes on from the file
            generate.main([*arguments, "--device", device, "--state", str(state)])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    a, b = (torch.load(tmp_path / x, map_location="cpu") for x in ("cpu", "cuda"))
    torch.testing.assert_close(a["wkv"], b["wkv"], rtol=1e-3, atol=1e-4)
