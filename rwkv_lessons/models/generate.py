"""RWKV-7 writes: python -m rwkv_lessons.models.generate MODEL.pth --vocabulary FILE --prompt TEXT

MODEL.pth is a checkpoint in BlinkDL's layout (x070): https://huggingface.co/BlinkDL has them, and
rwkv_vocab_v20230424.txt comes with the `rwkv` package from PyPI. Several --prompt are one batch,
whose lines appear as they are complete, each after its number. With --state the run goes on from
the file, if it is there, and writes it at its end or when Ctrl-C ends it.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch

from rwkv_lessons.models.rwkv7 import Rwkv7, States, read_checkpoint
from rwkv_lessons.models.vocabulary import Bytes, World, decoder
from rwkv_lessons.runtime.command_line import as_seed, at_least, run, writable

FORMAT = "rwkv_lessons generation, 1"
COLDEST = 1e-30  # divided by less, a logit can overflow; the likeliest token is as certain
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def choose(logits, temperature, top_p, uniform):
    """Tokens `[S]` drawn from logits `[S, vocabulary]`.

    Args:
        temperature: 0 takes the likeliest. top_p: draws from the fewest tokens whose odds add up to
            it, after the temperature.
        uniform: `[S]`, numbers from 0 to 1 that decide.
    """
    if temperature < COLDEST:
        return logits.argmax(-1)
    odds, tokens = torch.softmax(logits.float() / temperature, -1), None
    if top_p < 1:
        odds, tokens = odds.sort(-1, descending=True)
        odds = odds.masked_fill(odds.cumsum(-1) - odds >= top_p, 0)  # never the first
    sums = odds.cumsum(-1)
    place = torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)
    place = place.minimum((sums < sums[:, -1:]).sum(-1, keepdim=True))  # the last that can be drawn
    return (place if tokens is None else tokens.gather(1, place))[:, 0]


class Generation:
    """A batch of sequences that are being written, and what it takes to go on with them.

    Attributes:
        logits: of the next token of each, `[S, vocabulary]`.
        finished: which have ended; they are not computed any more.
        pending: bytes of each that are not a whole character yet.
    """

    def __init__(self, model, sequences, seed=0):
        self.model, self.states = model, model.states(sequences)
        self.logits = torch.zeros(sequences, model.vocabulary, device=model.device)
        self.finished, self.pending = [False] * sequences, [b""] * sequences
        self.seed(seed)

    def seed(self, seed):
        """What is drawn for a sequence depends on the seed and its place, not on the others."""
        self.draws = [torch.Generator().manual_seed(seed + n) for n in range(len(self.pending))]

    def feed(self, tokens):
        """Takes tokens, {sequence: [tokens]}."""
        tokens = {n: new for n, new in tokens.items() if new}
        if tokens:
            rows, packed = list(tokens), torch.tensor([x for y in tokens.values() for x in y])
            lengths = [len(x) for x in tokens.values()]
            self.logits[rows] = self.model(packed, lengths, rows, self.states)

    def draw(self, temperature=1.0, top_p=1.0, end=None):
        """{sequence: its next token} of those that have not ended; `feed` takes them next.

        A sequence ends with the token `end`, which is not returned.
        """
        rows = [n for n, ended in enumerate(self.finished) if not ended]
        uniform = torch.cat([torch.rand(1, generator=self.draws[n]) for n in rows])
        logits = self.logits[rows]
        tokens = choose(logits, temperature, top_p, uniform.to(logits.device)).tolist()
        for n, token in zip(rows, tokens, strict=True):
            self.finished[n] = token == end
        return {n: x for n, x in zip(rows, tokens, strict=True) if not self.finished[n]}

    def save(self, path):
        """Writes a file to go on from: whole, or the old one stays."""
        state = {
            "format": FORMAT,
            "model": self.model.fingerprint,
            **vars(self.states),
            "logits": self.logits,
            "draws": torch.stack([x.get_state() for x in self.draws]),
            "finished": self.finished,
            "pending": [list(x) for x in self.pending],
        }
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)

    @classmethod
    def load(cls, path, model):
        """What `save` wrote; a ValueError says why it cannot be used."""
        try:
            contents = torch.load(path, map_location="cpu", weights_only=True)
        except OSError as problem:
            raise ValueError(f"{path}: {problem.strerror or problem}") from problem
        except Exception as problem:  # of a file that is damaged, torch raises many kinds
            raise ValueError(f"{path}: damaged, or no saved states; use a new file") from problem
        if not isinstance(contents, dict) or contents.get("format") != FORMAT:
            raise ValueError(f"{path}: expected states that this command wrote with --state")
        if contents["model"] != model.fingerprint:
            raise ValueError(f"{path}: these are states of another model; use a new file")
        writing = cls(model, len(contents["finished"]))
        states = {name: contents[name].to(model.device) for name in ("wkv", "time", "channels")}
        writing.states = States(
            states["wkv"], *(states[name].to(model.dtype) for name in ("time", "channels"))
        )
        writing.logits = contents["logits"].to(model.device)
        for generator, state in zip(writing.draws, contents["draws"], strict=True):
            generator.set_state(state.clone())  # of a view torch reads other memory
        writing.finished = contents["finished"]
        writing.pending = [bytes(x) for x in contents["pending"]]
        return writing


class Interrupts:
    """Ctrl-C, kept until a token is complete; a second one ends the program at once."""

    def __enter__(self):
        self.requested = False
        self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_):
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *_):
        signal.signal(signal.SIGINT, self.before)


class Printer:
    """Text to standard output: of one sequence as it comes, of several line by line."""

    def __init__(self, pending):
        self.decoders, self.several = [decoder() for _ in pending], len(pending) > 1
        self.lines = ["" for _ in pending]
        for decode, data in zip(self.decoders, pending, strict=True):
            decode(data)

    def __call__(self, n, data):
        text = self.decoders[n](data)
        if self.several:
            *lines, self.lines[n] = (self.lines[n] + text).split("\n")
            text = "".join(f"{n}| {line}\n" for line in lines)
        print(text, end="", flush=True)

    def end(self):
        """Closes the line, or prints lines that are not complete."""
        lines = (f"{n}| {line}\n" for n, line in enumerate(self.lines) if line)
        print("".join(lines) if self.several else "\n", end="", flush=True)


def unfinished(pending, data):
    """Of bytes the last ones that are no whole character yet."""
    decode = decoder()
    decode(pending + data)
    return decode.__self__.getstate()[0]


def peak_bandwidth(device):
    """Bytes a second that a GPU's memory clock and bus allow; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock, bits = (
        getattr(properties, "memory_clock_rate", 0),
        getattr(properties, "memory_bus_width", 0),
    )
    return 2 * clock * 1e3 * bits / 8 or None  # two transfers a cycle; the rate is in kHz


def speeds(model, sequences, tokens, steps, seconds, bandwidth):
    """What a run says of its speed; `bandwidth` in bytes a second, None if it is not known."""
    rate = tokens / seconds
    line = f"{tokens} tokens in {seconds:.2f} s: {rate:.1f} tokens/s"
    if bandwidth is None:
        return line
    weights, states = model.bytes_per_step(sequences)
    bound = bandwidth / (weights + states) * tokens / steps
    return (
        f"{line}, {100 * rate / bound:.3g}% of the memory bound, {bound:,.1f} tokens/s ("
        f"{weights / 1e6:.1f} MB of weights and {states / 1e6:.1f} MB of states a step at"
        f" {bandwidth / 1e9:.0f} GB/s)"
    )


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.models.generate",
        usage="%(prog)s MODEL.pth (--vocabulary FILE | --bytes) --prompt TEXT [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a checkpoint, .pth")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--vocabulary", metavar="FILE", help="rwkv_vocab_v20230424.txt")
    how.add_argument("--bytes", action="store_true", help="tokens are bytes")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="give several for a batch"
    )
    parser.add_argument(
        "--count", type=at_least(1), default=100, help="tokens to write (default: 100)"
    )
    parser.add_argument(
        "--temperature",
        type=at_least(0, float),
        default=1.0,
        help="0 takes the likeliest token (default: 1)",
    )
    parser.add_argument(
        "--top-p", type=share, default=1.0, help="applied after the temperature (default: 1)"
    )
    parser.add_argument(
        "--seed",
        type=as_seed,
        help="of the draws (default: 0; with --state, where they stopped)",
    )
    parser.add_argument(
        "--state",
        type=writable,
        metavar="FILE",
        help="continue from it if it exists; write it at the end",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, else bfloat16")
    parser.add_argument(
        "--bandwidth", type=at_least(1, float), metavar="GB/S",
        help="of the memory, for the bound; a GPU's is known",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if not options.prompt and not (options.state and Path(options.state).exists()):
        parser.error("needs --prompt TEXT, or --state FILE of an earlier run")
    return parser, options


def share(text):
    """A `type` for `argparse`: a number above 0 and up to 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: needs a number above 0 and up to 1")
    return number


def prepared(options):
    """The `Generation`, the vocabulary and the prompts as tokens, or a ValueError."""
    vocabulary = Bytes() if options.bytes else World(options.vocabulary)
    prompts = [vocabulary.encode(text) for text in options.prompt or ()]
    if not all(prompts):
        raise ValueError("--prompt: needs at least one character")
    try:
        if options.device.partition(":")[0] not in ("cpu", "cuda"):
            raise RuntimeError("needs cpu, cuda or cuda:N")
        device = torch.device(options.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(f"--device {options.device!r}: {reason}") from None
    dtype = DTYPES[options.dtype or ("float32" if device.type == "cpu" else "bfloat16")]
    model = Rwkv7(read_checkpoint(options.model), dtype, device)
    if vocabulary.largest >= model.vocabulary:
        raise ValueError(
            f"the vocabulary has tokens up to {vocabulary.largest}, the model only up to"
            f" {model.vocabulary - 1}"
        )
    if not (options.state and Path(options.state).exists()):
        return Generation(model, len(prompts), options.seed or 0), vocabulary, prompts
    writing = Generation.load(options.state, model)
    if prompts and len(prompts) != len(writing.pending):
        raise ValueError(
            f"--prompt: needs one for each sequence of {options.state}, {len(writing.pending)}, or"
            f" none, got {len(prompts)}"
        )
    if options.seed is not None:
        writing.seed(options.seed)
    return writing, vocabulary, prompts


def write(writing, vocabulary, count, temperature, top_p):
    """Prints up to `count` tokens of each sequence; returns tokens, steps, and if interrupted."""
    printer, tokens, steps = Printer(writing.pending), 0, 0
    with Interrupts() as interrupts:
        while steps < count and not (all(writing.finished) or interrupts.requested):
            drawn = writing.draw(temperature, top_p, vocabulary.end)
            for n, token in drawn.items():
                data = vocabulary.bytes_of(token)
                writing.pending[n] = unfinished(writing.pending[n], data)
                printer(n, data)
            writing.feed({n: [token] for n, token in drawn.items()})
            tokens, steps = tokens + len(drawn), steps + 1
    printer.end()
    return tokens, steps, interrupts.requested


def warm_up(model):
    """Has a GPU compile the kernels of prompts and of single tokens, before a clock starts."""
    if model.device.type != "cpu":
        for count in (17, 1):
            tokens = torch.zeros(count, dtype=torch.int64)
            float(model(tokens, [count], [0], model.states(1))[0, 0])


def main(argv=None):
    parser, options = arguments(argv)
    try:
        writing, vocabulary, prompts = prepared(options)
    except ValueError as problem:
        parser.error(str(problem))
    model, sequences = writing.model, len(writing.pending)
    warm_up(model)
    if prompts:
        began = time.perf_counter()
        writing.finished = [False] * sequences
        writing.feed(dict(enumerate(prompts)))
        float(writing.logits[0, 0])  # waits for a GPU
        seconds, total = time.perf_counter() - began, sum(map(len, prompts))
        print(f"prompts: {speeds(model, sequences, total, 1, seconds, None)}", file=sys.stderr)
    began = time.perf_counter()
    tokens, steps, interrupted = write(
        writing, vocabulary, options.count, options.temperature, options.top_p
    )
    float(writing.logits[0, 0])  # waits for a GPU: nobody has drawn from the last ones
    seconds = time.perf_counter() - began
    if steps:
        bandwidth = options.bandwidth and options.bandwidth * 1e9
        bandwidth = bandwidth or peak_bandwidth(model.device)
        speed = speeds(model, sequences, tokens, steps, seconds, bandwidth)
        print(f"written: {speed}", file=sys.stderr)
    if options.state:
        writing.save(options.state)
    if interrupted:
        hint = f"; {options.state} goes on from here" if options.state else ""
        print(f"generate: interrupted after {tokens} tokens{hint}", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(run(main, "generate"))
