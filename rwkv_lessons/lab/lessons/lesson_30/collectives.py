"""The evidence for a collective that a learner writes, with ranks that only send and receive."""

import torch

from warplens.faults import KernelFault

from ...course.check import PASSED, Row
from ...evidence.compare import Difference
from ...evidence.functions import called, failed


class _Waits(BaseException):
    """A rank receives a message that was not sent yet."""


class _Ranks:
    """Runs a function on several ranks, one after another, and again from its start whenever a
    message that it waits for has arrived: it computes the same each time."""

    def __init__(self, function, values):
        self.function, self.values = function, values
        self.sent = {}  # (from, to): the messages so far
        self.returned = {}  # rank: what it returned
        self.waits = {}  # rank: whose message it waits for

    def run(self):
        ranks = range(len(self.values))
        while len(self.returned) < len(ranks):
            before = self._progress()
            for rank in ranks:
                if rank not in self.returned:
                    self._run_one(rank)
            if self._progress() == before:
                waits = ", ".join(f"rank {a} waits for rank {b}" for a, b in self.waits.items())
                raise Difference(f"a hang: {waits}, and no rank sends any more")
        return [self.returned[rank] for rank in ranks]

    def _progress(self):
        return len(self.returned), sum(map(len, self.sent.values()))

    def _run_one(self, rank):
        ranks, sent, received = len(self.values), {}, {}

        def send(x, to):
            following = (rank + 1) % ranks
            if to != following:
                raise Difference(f"rank {rank} sends to rank {to}, want rank {following} only")
            if not isinstance(x, torch.Tensor):
                raise Difference(f"rank {rank} sends {type(x).__name__}, want a tensor")
            sent.setdefault((rank, to), []).append(x.clone())
            if len(sent[rank, to]) > ranks - 1:
                raise Difference(f"rank {rank} sends {ranks} messages, want {ranks - 1} at most")

        def receive(source):
            messages, n = self.sent.get((source, rank), []), received.get(source, 0)
            if n == len(messages):
                self.waits[rank] = source
                raise _Waits
            received[source] = n + 1
            return messages[n].clone()

        try:
            mine = self.values[rank]
            self.returned[rank] = called(self.function, mine, rank, ranks, send, receive)
            self.waits.pop(rank, None)
        except _Waits:
            pass
        self.sent |= sent


def ring(*cases):
    """Calls the function on all ranks of each case: (what it tests, symptom, how many ranks)."""

    def gather(function, exercise):
        for name, symptom, ranks in cases:
            values = list(torch.randn(ranks, 2, 3, generator=torch.Generator().manual_seed(ranks)))
            try:
                _judge(_Ranks(function, values).run(), values)
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, symptom)
        most = max(ranks for _, _, ranks in cases)
        text = f"{len(cases)} cases; each of {most} ranks sends {most - 1} messages to the next one"
        return Row("answer", PASSED, text)

    gather.kind = "answer"
    return gather


def _judge(results, values):
    for rank, got in enumerate(results):
        if not isinstance(got, (list, tuple, torch.Tensor)) or len(got) != len(values):
            raise Difference(f"rank {rank} returns {_in_words(got)}, want a list of {len(values)}")
        for n, (x, want) in enumerate(zip(got, values, strict=True)):
            if not isinstance(x, torch.Tensor):
                raise Difference(f"rank {rank}: place {n} holds {x!r}, want rank {n}'s tensor")
            if not torch.equal(x, want):
                whose = [m for m, y in enumerate(values) if torch.equal(x, y)]
                content = f"rank {whose[0]}'s tensor" if whose else "a tensor of no rank"
                raise Difference(f"rank {rank}: place {n} holds {content}, want rank {n}'s")


def _in_words(x):
    return f"{type(x).__name__} of {len(x)}" if hasattr(x, "__len__") else type(x).__name__
