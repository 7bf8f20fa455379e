"""python -m rwkv_lessons.bench wkv7-serving: calls on states of a pool; and wkv6-serving.

A shape S, T, H, N is S sequences of one token, or of T drafts, which are verified and committed, or
with a large T a mixed batch: 16 prompts of T / 8 to T tokens beside single ones. Each has a row
with the L2 cache cleared before every call, for each dtype of the pool, and one that is replayed
from a CUDA graph; of a mixed batch its parts are timed as well.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.mla_decode import graph_times
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import LIMITS, PEER_LIMIT, checked, checked_row
from rwkv_lessons.bench.peers import peers
from rwkv_lessons.bench.serving_operators import operators
from rwkv_lessons.bench.show import console
from rwkv_lessons.inputs import rwkv6_inputs, rwkv7_inputs
from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import DTYPES
from rwkv_lessons.operations.work import MOST_DRAFTS, PROMPTS, Work, served_lengths
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.wkv6 import wkv6
from rwkv_lessons.wkv6.serving import wkv6_serving
from rwkv_lessons.wkv7 import wkv7
from rwkv_lessons.wkv7.serving import wkv7_commit, wkv7_serving, wkv7_verify, wkv7_workspace

POOLS = {
    "float32 state": (torch.float32, False),
    "float16 state": (torch.float16, False),
    "stochastic float16 state": (torch.float16, True),
}
FILES = {
    "wkv6": "rwkv_lessons/wkv6/serving/packed.py::wkv6_serving",
    "wkv7": "rwkv_lessons/wkv7/serving/packed.py::wkv7_serving",
}
DRAFTS = "rwkv_lessons/wkv7/serving/drafts.py"


@dataclass
class ServedBatch:
    """Tokens of a batch, packed, and states in a pool in no order; what float64 makes of them."""

    package: str
    tokens: tuple  # the operation's, `[1, total, H, N]`; of wkv6 with u
    states: torch.Tensor  # `[slots, H, N, N]`
    slots: torch.Tensor  # of each sequence, int32
    ends: torch.Tensor
    lengths: list
    expected: torch.Tensor  # o, `[1, total, H, N]`
    after: torch.Tensor  # the states in the order of the sequences

    @property
    def longest(self):
        return max(self.lengths)

    @property
    def before(self):
        """The states in the order of the sequences."""
        return self.states[self.slots.long()]

    def of_each(self):
        """S, T, H, N where all sequences have T tokens."""
        if len(set(self.lengths)) > 1:
            raise ValueError("takes sequences of one length")
        return len(self.lengths), self.longest, *self.tokens[0].shape[2:]


def command(options):
    """Checks and times each kind of call at each shape, prints the rows and records them."""
    operation, others = OPERATIONS[options.operation], {}
    if options.peers:
        installed, missing = peers(operation.name)
        others |= {f"{name} float32 state": (x.prepare, x.note) for name, x in installed.items()}
        console().print(*missing, sep="\n")
    if operation.package == "wkv7":
        adapters = operators(options.operators)
        others |= {name: (prepare, "from a library") for name, prepare in adapters.items()}
    chosen = choose(POOLS | others, options.methods)
    budget_ms = options.budget_ms or (QUICK_MS if options.quick else timing.BUDGET_MS)

    def rows(shape, dtype, device):
        for name, how in chosen.items():
            measure = _measure if name in POOLS else _beside
            yield from measure(operation, name, how, shape, dtype, device, budget_ms)

    time_rows(options, operation, rows)


def make_batch(package, shape, dtype, pool_dtype, device, lengths=None):
    """A `ServedBatch` of a shape; the same one each time, but for the dtype of its states."""
    S, T, H, N = shape
    lengths = lengths or served_lengths(S, T)
    make = rwkv7_inputs if package == "wkv7" else rwkv6_inputs
    x = make(1, sum(lengths), H, N, dtype=getattr(torch, dtype), device=device)
    g = torch.Generator(device).manual_seed(0)
    states = torch.randn(len(lengths), H, N, N, generator=g, device=device) / N**0.5
    states = states.to(pool_dtype)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    order = torch.randperm(len(lengths), generator=g, device=device)
    expected, after = in_float64(package, x, states[order], lengths)
    return ServedBatch(package, tuple(x), states, order.int(), ends, lengths, expected, after)


def in_float64(package, x, before, lengths):
    """o `[1, total, H, N]` and the states after; sequences of one length are one batch."""
    whole, start, outputs, after = wkv7 if package == "wkv7" else wkv6, 0, [], []
    for length, group in groupby(lengths):
        S, n = len(list(group)), sum(map(len, after))
        part = slice(start, start := start + S * length)
        tokens = [y[0, part].unflatten(0, (S, length)) if y.ndim == 4 else y for y in x]
        o, states = whole(*(y.double() for y in tokens), before[n : n + S].double())
        outputs.append(o.flatten(0, 1))
        after.append(states)
    return torch.cat(outputs)[None], torch.cat(after)


def make_call(batch, stochastic):
    """By name a call and, in float64, what the first one has to return: o, or the states after."""
    x, slots, ends, used = batch.tokens, batch.slots, batch.ends, batch.states.clone()
    seeds = ends[1:].contiguous() if stochastic else None
    if 1 < batch.longest <= MOST_DRAFTS:
        shape = batch.of_each()
        x, expected = [y.view(shape) for y in x], batch.expected.view(shape)
        accepted = torch.full_like(slots, batch.longest)
        log = {"decay": "log", "seeds": seeds}
        return {
            "verify": (lambda: wkv7_verify(*x, used, slots, **log), expected),
            "commit": (partial(_committed, x, used, slots, accepted, log), batch.after),
        }
    args, expected = (*x, used, slots, ends), batch.expected
    option = {"seeds": seeds, "longest": batch.longest}
    if batch.package == "wkv6":
        return {"": (lambda: wkv6_serving(*args, raw_decay=False, **option), expected)}
    if used.is_cuda:
        _, total, H, N = x[0].shape
        option["workspace"] = wkv7_workspace(total, len(slots), H, N, N, x[0].dtype)
    return {"": (lambda: wkv7_serving(*args, decay="log", **option), expected)}


def _committed(x, states_pool, slots, accepted, log):
    """The states of the sequences after their drafts; what is right is the first call's."""
    wkv7_commit(*x, states_pool, slots, accepted, **log)
    return states_pool[slots]


@torch.no_grad()
def _measure(operation, name, pool, shape, dtype, device, budget_ms):
    """The rows of one kind of pool: cold and replayed, and of a mixed batch its parts."""
    S, T = shape[:2]
    parts = {"": None}
    if T > MOST_DRAFTS and S > PROMPTS:
        lengths = served_lengths(S, T)
        parts |= {"prompts alone": lengths[:PROMPTS], "single tokens alone": lengths[PROMPTS:]}
    rows = []
    for part, lengths in parts.items():
        batch = make_batch(operation.package, shape, dtype, pool[0], device, lengths)
        calls = make_call(batch, pool[1])
        for kind, (call, expected) in calls.items():
            title = ", ".join(x for x in (kind, name, part) if x)
            sources = [FILES[operation.package]]
            if kind:
                sources = [f"{DRAFTS}::wkv7_{kind}"]
            row = {"shape": tuple(shape), "dtype": dtype} | code(*sources)
            _, row["error"], problem = checked(lambda: call, expected, LIMITS[dtype])  # noqa: B023
            if problem:
                rows.append(Measurement(title, **row, problem=problem))
                continue
            least = least_of(operation, shape, dtype, kind, pool[0])
            limits = recorded_ceilings(device)
            times = {title: timing.device_times(call, device, budget_ms)}
            if device.type == "cuda":
                times[f"{title}, graph replay"] = graph_times(call, budget_ms)
            for of, time in times.items():
                speed = {} if part else rates(least, dtype, time.median_ms, limits)
                rows.append(Measurement(of, **row, **time._asdict(), **speed))
    return rows


def least_of(operation, shape, dtype, kind, pool_dtype):
    """The least work of a call: drafts that are verified write no state, committed ones no o."""
    S, T, H, N = shape
    flops = operation.least(shape, dtype).flops
    per_token = {"": 7 if operation.package == "wkv7" else 5, "verify": 7, "commit": 5}[kind]
    tokens = sum(served_lengths(S, T)) * H * N * per_token * DTYPES[dtype]
    ways = 1 if kind == "verify" else 2
    return Work(tokens + ways * S * H * N * N * pool_dtype.itemsize, flops)


@torch.no_grad()
def _beside(operation, name, how, shape, dtype, device, budget_ms):
    """The row of somebody else's call on the same batch; float32 states are given."""
    prepare, note = how
    batch = make_batch(operation.package, shape, dtype, torch.float32, device)

    def times(run):
        return timing.device_times(run, device, budget_ms)._asdict()

    def run():
        call = prepare(batch)
        return lambda: call().view(batch.expected.shape)

    about = {"method": name, "shape": tuple(shape), "dtype": dtype, "note": note}
    yield checked_row(about, run, batch.expected, PEER_LIMIT, times)
