"""The race: what a call costs besides its kernels, and CUDA graphs, which remove most of it."""

import math
from collections import Counter

import torch

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.lessons.lesson_18.evidence import (
    call,
    captures,
    captures_here,
    numbers,
    traces,
)


def torch_loop(r, k, v, w, u, s):
    """A model's fallback in plain torch, in the layouts that a model has.

    r, k, v, w are [B, T, C]; w is the raw decay, x in exp(-exp(x)); u is [H, N], s [B, H, N, N].
    Returns o, [B, T, C], and the last state.
    """
    (B, T, C), (H, N), dtype = r.shape, u.shape, r.dtype
    r, k, v, w = (x.float().view(B, T, H, N).transpose(1, 2) for x in (r, k, v, w))  # heads first
    decay, bonus, o = torch.exp(-torch.exp(w)), u.float()[:, :, None], v.new_empty(B, H, T, N)
    for t in range(T):
        kv = k[:, :, t, :, None] @ v[:, :, t, None, :]  # [B, H, N, N]
        o[:, :, t] = (r[:, :, t, None, :] @ (bonus * kv + s)).squeeze(2)
        s = decay[:, :, t, :, None] * s + kv
    return o.transpose(1, 2).reshape(B, T, C).to(dtype), s


def longest_kernel(events):
    """The kernel whose runs together take the most device time, and that time in µs.

    Args:
        events: dicts with "cat", "name", "ts" (start) and "dur", in µs, in any order. The cat of
            what ran on the device is "kernel"; the host's work to start it is a "launch".
    """
    ### BEGIN SOLUTION
    totals = Counter()
    for event in events:
        if event["cat"] == "kernel":
            totals[event["name"]] += event["dur"]
    return totals.most_common(1)[0]
    ### END SOLUTION


def idle_share(events):
    """The share of a call in which no kernel runs: 0 to 1.

    Args:
        events: as above. The event with the cat "call" is the whole call. Kernels may overlap.
    """
    ### BEGIN SOLUTION
    whole = next(event for event in events if event["cat"] == "call")
    kernels = [event for event in events if event["cat"] == "kernel"]
    busy, end = 0, 0
    for event in sorted(kernels, key=lambda event: event["ts"]):
        begin, end = max(end, event["ts"]), max(end, event["ts"] + event["dur"])
        busy += max(0, end - begin)
    return 1 - busy / whole["dur"]
    ### END SOLUTION


def break_even(one, other):
    """The number of tokens from which on calls of `one` take no longer than calls of `other`.

    At least 1; math.inf if there is no such number.

    Args:
        one, other: (fixed cost of a call in µs, µs that each token adds).
    """
    ### BEGIN SOLUTION
    (fixed, each), (other_fixed, other_each) = one, other
    if each >= other_each:
        return 1 if each == other_each and fixed <= other_fixed else math.inf
    return max(1, math.ceil((fixed - other_fixed) / (other_each - each)))
    ### END SOLUTION


def capture(f, inputs, cuda=torch.cuda):
    """Captures a call of f as a CUDA graph; returns `replay`, a function of new inputs.

    replay(*new) replays the graph for these inputs and returns what f returns. replay() uses the
    inputs of the last time. Only the graph launches f's kernels: no replay calls f.

    Args:
        f: returns a tensor or several. Its first call compiles.
        inputs: tensors that belong to the caller: no replay writes to them.
        cuda: what to capture with: cuda.CUDAGraph(), cuda.graph(…).
    """
    ### BEGIN SOLUTION
    static = [x.clone() for x in inputs]
    f(*static)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results = f(*static)
    ### END SOLUTION

    def replay(*new):
        ### BEGIN SOLUTION
        for x, y in zip(static, new, strict=False):
            x.copy_(y)
        graph.replay()
        return results
        ### END SOLUTION

    return replay


def inputs(B, T, H, N, dtype=torch.float32, seed=0):
    """r, k, v, w, u, s as `torch_loop` takes them, random numbers; r, k, v of `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    r, k, v = (random(B, T, H * N).to(dtype) for _ in range(3))
    return r, k, v, random(B, T, H * N) - 2, random(H, N), random(B, H, N, N)


SMALL = (1, 3, 2, 4)
ALONE = call(0, 20, ("scan", 8, 5))
GAPS = call(0, 40, ("exp", 5, 2), ("scan", 10, 10), ("exp", 22, 2), ("exp", 30, 8))
LATER = call(1000, 1040, ("exp", 1005, 2), ("scan", 1010, 10), ("exp", 1022, 8))
SIDE_BY_SIDE = call(0, 30, ("scan", 5, 20), ("copy", 10, 5), ("copy", 20, 10))
AROUND = [*GAPS[::-1]]

EXERCISES = {
    "longest_kernel": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                'if event["cat"] == "kernel":': "The host's launches and the call itself are "
                "events too, and the call is the longest event.",
                'totals[event["name"]] += event["dur"]': "A kernel of 1 µs that runs 200 times "
                "costs more than one of 50 µs that runs once.",
            },
            instead={
                "The longest single run": "tells you something else: a lower bound for a replay.",
            },
            stretch="Which kernels' totals does a CUDA graph change?",
        ),
        hints=(
            "Which events ran on the device? Do you need a single run, or all runs of the same "
            "kernel?",
            "Build a dictionary from kernel name to µs, adding only kernel events. Return its "
            "largest entry.",
            'totals = Counter(); totals[event["name"]] += event["dur"] for each event whose cat '
            'is "kernel"; return totals.most_common(1)[0].',
        ),
        evidence=(
            traces(
                ("one kernel", "one kernel", ALONE, ("scan", 5)),
                ("many short runs of one kernel", "many", GAPS, ("exp", 12)),
                ("in another order", "many", AROUND, ("exp", 12)),
                names=("name", "time"),
            ),
        ),
        symptoms={
            "one kernel": 'Only events of cat "kernel" ran on the device.',
            "many": "Three runs of exp are 12 µs together, more than one of scan.",
            "time": "Add up `dur` over all runs of that kernel, and only of that kernel.",
        },
    ),
    "idle_share": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                'begin, end = max(end, event["ts"]), max(end, event["ts"] + event["dur"])': "Each "
                "kernel adds only the part after the end of all earlier ones, so no µs is "
                "counted twice.",
                'return 1 - busy / whole["dur"]': "The share is of the whole call: the device "
                "also waits before the first and after the last kernel.",
            },
            instead={
                "1 - sum of durations / span": "is right while kernels run one at a time, but "
                "ignores the time before the first kernel.",
            },
            stretch="Separate the idle time before the first kernel from that between kernels. "
            "Which of the two does a graph shorten?",
        ),
        hints=(
            "Which span do you compare with: the one from the first kernel on, or the whole "
            "call? And is the device twice as busy when two kernels overlap?",
            "Go through the kernels in order of their start. Remember the latest end so far; "
            "each kernel adds only the part after it.",
            'begin = max(end, event["ts"]); end = max(end, event["ts"] + event["dur"]); busy += '
            'max(0, end - begin); 1 - busy / the dur of the event whose cat is "call".',
        ),
        evidence=(
            traces(
                ("one kernel", "one kernel", ALONE, 0.75),
                ("gaps between kernels", "gaps", GAPS, 1 - 22 / 40),
                ("a call that starts late", "late", LATER, 0.5),
                ("in another order", "order", AROUND, 1 - 22 / 40),
                ("two kernels side by side", "side by side", SIDE_BY_SIDE, 1 - 25 / 30),
                names=("idle share",),
            ),
        ),
        symptoms={
            "one kernel": "The call takes 20 µs and the kernel 5, so three quarters are idle. "
            "Before the first kernel and after the last one the device waits too.",
            "gaps": "Only kernels keep the device busy; launches do not.",
            "order": "Events can be in any order in a file: sort them by start.",
            "late": "The call need not start at 0: use its duration, not its end.",
            "side by side": "While two kernels overlap, the device is busy once.",
            "idle share": "Sort by start, and count only what comes after the latest end so far.",
        },
    ),
    "break_even": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "if each >= other_each:": "A method that takes longer for each token never "
                "catches up, however cheap its call is.",
                "return max(1, math.ceil((fixed - other_fixed) / (other_each - each)))": "The "
                "extra fixed cost, divided by what each token saves; a call has at least one "
                "token.",
            },
            instead={
                "Trying T = 1, 2, 3, …": "gives the same number, but never ends where there is "
                "no break-even.",
            },
            stretch="Up to 50 µs of kernels, the host is slower than the device, and the call "
            "takes as long as the host. What does the time look like as a function of T now?",
        ),
        hints=(
            "Two straight lines. How far apart do they start, and how fast does the distance "
            "shrink?",
            "fixed + T · each ≤ other_fixed + T · other_each. Solve for T, round up, and return "
            "at least 1. What happens if `each` is not the smaller one?",
            "max(1, math.ceil((fixed - other_fixed) / (other_each - each))) if each < "
            "other_each. If they are equal, the answer is 1 or math.inf.",
        ),
        evidence=(
            numbers(
                ("higher fixed cost, less per token", ((60, 1), (40, 2)), 20),
                ("not a whole number", ((60, 1), (45, 3)), 8),
                ("better in both", ((20, 1), (40, 2)), 1),
                ("worse in both", ((40, 2), (20, 1)), math.inf),
                ("lower fixed cost, more per token", ((20, 3), (40, 2)), math.inf),
                ("the same per token, lower fixed cost", ((20, 2), (30, 2)), 1),
                ("the same per token, higher fixed cost", ((30, 2), (20, 2)), math.inf),
                ("equal", ((30, 2), (30, 2)), 1),
                ("more digits", ((41.5, 0.31), (23.25, 0.65)), 54),
                ("thousands of tokens", ((4000.5, 0.25), (20, 0.5)), 15922),
                more=[((20 + n, 0.5), (17, 0.75 + n / 64)) for n in range(0, 400, 7)],
                name="tokens",
            ),
        ),
        symptoms={
            "higher fixed cost, less per token": "The call costs 20 µs more and each token 1 µs "
            "less: after 20 tokens they are even.",
            "not a whole number": "7.5 tokens: with 7 it is still slower. Round up.",
            "better in both": "It is better from the first token on: return 1, not 0 or less.",
            "lower fixed cost, more per token": "It leads for a while and is then overtaken for "
            "good, so the answer is math.inf.",
            "the same per token, lower fixed cost": "The difference is the same for every T.",
            "the same per token, higher fixed cost": "The difference is the same for every T.",
        },
    ),
    "capture": Exercise(
        minutes=15,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "static = [x.clone() for x in inputs]": "A graph stores addresses, not values: "
                "the inputs of every replay have to be copied there.",
                "x.copy_(y)": "This writes into the memory that the graph reads. `x = y` would "
                "only rebind the name.",
                "f(*static)": "A call before the capture compiles the kernels and makes lasting "
                "allocations, which a capture forbids.",
            },
            instead={
                "Writing new inputs into the static tensors yourself": "saves the copies: in an "
                "engine, the previous kernel can write there directly.",
                "return a clone of the results": "costs another launch, but the next replay no "
                "longer overwrites what the caller holds.",
            },
            stretch="Each length T needs a graph of its own. How would you serve prompts of 1 to "
            "4,096 tokens with twelve graphs?",
        ),
        hints=(
            "A graph repeats launches with the same addresses. Which memory does it read if the "
            "next inputs are elsewhere?",
            "Four steps: make your own tensors for the inputs; call f once so that it compiles; "
            "capture a call in `with cuda.graph(graph):`; and in replay, copy the inputs into "
            "your tensors, then call graph.replay().",
            "static = [x.clone() for x in inputs]; f(*static); graph = cuda.CUDAGraph(); with "
            "cuda.graph(graph): results = f(*static) | for x, y in zip(static, new): x.copy_(y); "
            "graph.replay(); return results.",
        ),
        evidence=(
            captures(torch_loop, lambda seed: inputs(*SMALL, seed=seed)),
            captures_here(torch_loop, lambda seed: inputs(*SMALL, seed=seed)),
        ),
        symptoms={
            "cuda": "Capture with the argument `cuda`; on a GPU it is torch.cuda.",
            "first call": "Call f once before the capture: compiling and loading a kernel are "
            "not launches and cannot be recorded.",
            "nothing captured": "The call of f that is to be recorded belongs inside `with "
            "cuda.graph(graph):`.",
            "once": "Every replay repeats everything in the capture.",
            "the same inputs": "During the capture nothing runs. Results appear after a replay, "
            "in the tensors that f returned during the capture.",
            "other inputs": "The graph reads the memory it was captured with: new inputs have to "
            "be copied there.",
            "one behind": "Copy the inputs first, then call graph.replay().",
            "elsewhere": "A graph writes to the tensors that f returned during the capture, not "
            "to earlier ones.",
            "and others": "Every replay has to copy its inputs.",
            "no new inputs": "Without new inputs, use those of the last time: they are still in "
            "their memory.",
            "replays": "One graph.replay() does all the work: a second does it again.",
            "called again": "Only graph.replay() may launch; do not call f.",
            "the caller's": "Capture with clones: replays write the inputs there.",
            "waits": "During a capture nothing runs, so nothing can be read or waited for.",
        },
    ),
}
