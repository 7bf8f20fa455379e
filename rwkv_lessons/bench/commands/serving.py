"""python -m rwkv_lessons.bench wkv7-serving: calls on states of a pool; and wkv6-serving.

A shape S, T, H, N is S sequences of one token, or of T drafts, which are verified and committed, or
with a large T a mixed batch: 16 prompts of T / 8 to T tokens beside single ones. Each has a row
with the L2 cache cleared before every call, for each dtype of the pool, and one that is replayed
from a CUDA graph; of a mixed batch its parts are timed as well.
"""

from functools import partial
from itertools import accumulate

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.mla_decode import graph_times
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import LIMITS, checked
from rwkv_lessons.inputs import rwkv6_inputs, rwkv7_inputs
from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.work import MOST_DRAFTS, PROMPTS, served_lengths
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.wkv6 import wkv6
from rwkv_lessons.wkv6.serving import wkv6_serving
from rwkv_lessons.wkv7 import wkv7
from rwkv_lessons.wkv7.serving import wkv7_commit, wkv7_serving, wkv7_verify, wkv7_workspace

POOLS = {
    "float32 state": (torch.float32, False),
    "float16 state": (torch.float16, False),
    "float16 state, stochastic": (torch.float16, True),
}
FILES = {
    "wkv6": "rwkv_lessons/wkv6/serving/packed.py::wkv6_serving",
    "wkv7": "rwkv_lessons/wkv7/serving/packed.py::wkv7_serving",
}
DRAFTS = "rwkv_lessons/wkv7/serving/drafts.py"


def command(options):
    """Checks and times each kind of call at each shape, prints the rows and records them."""
    operation, pools = OPERATIONS[options.operation], choose(POOLS, options.methods)
    budget_ms = QUICK_MS if options.quick else timing.BUDGET_MS

    def rows(shape, dtype, device):
        for name, pool in pools.items():
            yield from _measure(operation, name, pool, shape, dtype, device, budget_ms)

    time_rows(options, operation, rows)


def make_call(package, shape, dtype, pool, device, lengths=None):
    """By name a call and, in float64, what the first one has to return: o, or the states after."""
    S, T, H, N = shape
    lengths = lengths or served_lengths(S, T)
    pool_dtype, stochastic = pool
    make = rwkv7_inputs if package == "wkv7" else rwkv6_inputs
    x = make(1, sum(lengths), H, N, dtype=getattr(torch, dtype), device=device)
    g = torch.Generator(device).manual_seed(0)
    states = torch.randn(len(lengths), H, N, N, generator=g, device=device) / N**0.5
    states = states.to(pool_dtype)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    order = torch.randperm(len(lengths), generator=g, device=device)
    slots, states_pool, before = order.int(), states.clone(), states[order].double()
    seeds = ends[1:].contiguous() if stochastic else None
    whole = wkv7 if package == "wkv7" else wkv6
    expected, after = whole(*(y.double() for y in x), before, cu_seqlens=ends)
    if 1 < max(lengths) <= MOST_DRAFTS:
        x = [y.view(S, T, H, N) for y in x]
        expected = expected.view(S, T, H, N)
        accepted = torch.full((S,), T, dtype=torch.int32, device=device)
        log = {"decay": "log", "seeds": seeds}
        return {
            "verify": (lambda: wkv7_verify(*x, states_pool, slots, **log), expected),
            "commit": (partial(_committed, x, states_pool, slots, accepted, log), after),
        }
    args = (*x, states_pool, slots, ends)
    option = {"seeds": seeds, "longest": max(lengths)}
    if package == "wkv6":
        return {"": (lambda: wkv6_serving(*args, raw_decay=False, **option), expected)}
    if device.type == "cuda":
        option["workspace"] = wkv7_workspace(sum(lengths), len(lengths), H, N, N, x[0].dtype)
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
        calls = make_call(operation.package, shape, dtype, pool, device, lengths)
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
            least, limits = operation.least(shape, dtype), recorded_ceilings(device)
            times = {title: timing.device_times(call, device, budget_ms)}
            if device.type == "cuda":
                times[f"{title}, graph replay"] = graph_times(call, budget_ms)
            for of, time in times.items():
                speed = {} if part else rates(least, dtype, time.median_ms, limits)
                rows.append(Measurement(of, **row, **time._asdict(), **speed))
    return rows
