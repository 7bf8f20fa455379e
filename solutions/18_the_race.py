"""The race: what a call costs beside its kernels, and CUDA graphs, which take most of it away."""

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

    r, k, v are [B, T, C]; w, the raw decay, x of exp(-exp(x)), too; u is [H, N], s [B, H, N, N].
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
    """The kernel that takes most of the device's time, all its runs together, and that time in µs.

    Args:
        events: of a trace: dicts with "cat", "name", "ts" (start) and "dur", in µs and any order.
            What ran on the device has the cat "kernel", what the host did for it "launch".
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
        events: as above. The event of cat "call" is the whole call. Kernels may overlap.
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
    """From how many tokens on calls of `one` take no longer than calls of `other`.

    At least 1; math.inf if that never comes.

    Args:
        one, other: (µs of a call however short it is, µs that each token adds).
    """
    ### BEGIN SOLUTION
    (fixed, each), (other_fixed, other_each) = one, other
    if each >= other_each:
        return 1 if each == other_each and fixed <= other_fixed else math.inf
    return max(1, math.ceil((fixed - other_fixed) / (other_each - each)))
    ### END SOLUTION


def capture(f, inputs, cuda=torch.cuda):
    """Captures a call of f as a CUDA graph; returns `replay`, a function of new inputs.

    replay(*new) replays the graph for these, and returns what f returns; without any it takes those
    of the last time. f's kernels are launched by the graph alone: no replay calls f.

    Args:
        f: its first call compiles. It returns a tensor, or several.
        inputs: tensors. They stay the caller's: no replay writes into them.
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
                'if event["cat"] == "kernel":': "The host's launches and the call are events, "
                "too, and the call is the longest of all.",
                'totals[event["name"]] += event["dur"]': "A kernel of 1 µs that runs 200 times is "
                "worth more attention than one of 50 µs.",
            },
            instead={
                "The longest single run": "answers another question: what a replay cannot be "
                "faster than.",
            },
            stretch="Which kernel's total would a CUDA graph change, and which not?",
        ),
        hints=(
            "Which events ran on the device? And is one run meant, or all runs of a name?",
            "A dictionary from name to µs, filled by the kernels only; then the largest entry.",
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
            "time": "The sum of `dur` over all runs of that kernel, and of no other.",
        },
    ),
    "idle_share": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                'begin, end = max(end, event["ts"]), max(end, event["ts"] + event["dur"])': "Of "
                "each kernel counts what lies behind the end of all before it: no µs counts twice.",
                'return 1 - busy / whole["dur"]': "Of the whole call: what lies before the first "
                "kernel and behind the last one is waiting, too.",
            },
            instead={
                "1 - sum of durations / span": "right as long as kernels run one at a time, and "
                "blind to the time before the first launch arrives.",
            },
            stretch="Tell the share before the first kernel from the share between kernels. Which "
            "of the two does a graph shorten?",
        ),
        hints=(
            "What is the time to compare with: from the first kernel, or of the whole call? And "
            "two kernels side by side, do they make the device twice as busy?",
            "Go through the kernels by start. Remember the latest end so far; each kernel adds "
            "what lies behind it.",
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
            "one kernel": "The call takes 20 µs, the kernel 5 of them: three quarters are idle. "
            "Before the first kernel and behind the last one the device waits, too.",
            "gaps": "Only kernels keep the device busy; launches do not.",
            "order": "A file may have its events in any order: sort them by start.",
            "late": "Events start when they start: what counts is how long they take.",
            "side by side": "Where two kernels run at once the device is busy once.",
            "idle share": "Sort by start, and count what lies behind the latest end so far.",
        },
    ),
    "break_even": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "if each >= other_each:": "Who needs more for a token never catches up, however "
                "much less the call costs.",
                "return max(1, math.ceil((fixed - other_fixed) / (other_each - each)))": "What the "
                "call costs more, over what each token saves; there is no call of 0 tokens.",
            },
            instead={
                "Trying T = 1, 2, 3, …": "the same number, and no end where there is none.",
            },
            stretch="Below 50 µs the host is the slower one, and the call takes as long as the "
            "host. Which shape has the time over T now?",
        ),
        hints=(
            "Two straight lines. What is the difference of their starts, and how fast does it "
            "shrink?",
            "fixed + T · each ≤ other_fixed + T · other_each. Solve for T, round up, at least 1; "
            "and see what happens if `each` is not the smaller one.",
            "max(1, math.ceil((fixed - other_fixed) / (other_each - each))) if each < other_each; "
            "with equal ones it is 1 or math.inf.",
        ),
        evidence=(
            numbers(
                ("dearer to call, cheaper a token", ((60, 1), (40, 2)), 20),
                ("not a whole number", ((60, 1), (45, 3)), 8),
                ("better in both", ((20, 1), (40, 2)), 1),
                ("worse in both", ((40, 2), (20, 1)), math.inf),
                ("cheaper to call, dearer a token", ((20, 3), (40, 2)), math.inf),
                ("the same for a token, cheaper to call", ((20, 2), (30, 2)), 1),
                ("the same for a token, dearer to call", ((30, 2), (20, 2)), math.inf),
                ("equal", ((30, 2), (30, 2)), 1),
                ("more digits", ((41.5, 0.31), (23.25, 0.65)), 54),
                ("thousands of tokens", ((4000.5, 0.25), (20, 0.5)), 15922),
                more=[((20 + n, 0.5), (17, 0.75 + n / 64)) for n in range(0, 400, 7)],
                name="tokens",
            ),
        ),
        symptoms={
            "dearer to call, cheaper a token": "20 µs more for the call, 1 µs less for a token: "
            "after 20 tokens they are even.",
            "not a whole number": "7.5 tokens: with 7 it is still slower. Round up.",
            "better in both": "From the first token on: 1, not 0 or less.",
            "cheaper to call, dearer a token": "It leads for a while, and then no more: from no "
            "number of tokens on.",
            "the same for a token, cheaper to call": "No token changes the distance.",
            "the same for a token, dearer to call": "No token changes the distance.",
        },
    ),
    "capture": Exercise(
        minutes=15,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "static = [x.clone() for x in inputs]": "A graph knows addresses, not values: the "
                "inputs of every replay have to come to these.",
                "x.copy_(y)": "Into the memory that the graph reads. `x = y` would only rename.",
                "f(*static)": "Before the capture: what compiles or allocates for good does it "
                "here, and not where it is forbidden.",
            },
            instead={
                "Writing new inputs into the static tensors yourself": "saves the copies: an "
                "engine lets the kernel before write there.",
                "return a clone of the results": "a launch more; else the next replay writes over "
                "what the caller still holds.",
            },
            stretch="A replay for every T needs a graph for every T. How would you serve prompts "
            "of 1 to 4,096 tokens with twelve graphs?",
        ),
        hints=(
            "A graph repeats launches with the same addresses. Which memory does it read, when "
            "the inputs of the next call lie elsewhere?",
            "Four steps: tensors of your own for the inputs; a call that compiles; the capture, in "
            "`with cuda.graph(graph):`; and in replay, copies into your tensors, then "
            "graph.replay().",
            "static = [x.clone() for x in inputs]; f(*static); graph = cuda.CUDAGraph(); with "
            "cuda.graph(graph): results = f(*static) | for x, y in zip(static, new): x.copy_(y); "
            "graph.replay(); return results.",
        ),
        evidence=(
            captures(torch_loop, lambda seed: inputs(*SMALL, seed=seed)),
            captures_here(torch_loop, lambda seed: inputs(*SMALL, seed=seed)),
        ),
        symptoms={
            "cuda": "Capture with what is given as `cuda`: on a GPU it is torch.cuda.",
            "first call": "Call f once before the capture: compiling and loading are no launches.",
            "nothing captured": "The call of f to be repeated stands inside `with "
            "cuda.graph(graph):`.",
            "once": "What stands in the capture is repeated by every replay.",
            "the same inputs": "While it is captured nothing runs: results are there after a "
            "replay only, in the tensors that f returned in the capture.",
            "other inputs": "The graph reads the memory that it was captured with: new inputs have "
            "to be copied there.",
            "one behind": "Inputs first, then graph.replay().",
            "elsewhere": "What the graph writes is what f returned in the capture, and nothing "
            "that was there before.",
            "and others": "Every replay copies its inputs.",
            "no new inputs": "Without new inputs the old ones are still in their memory.",
            "called again": "Only graph.replay() launches.",
            "the caller's": "Capture with clones: replays write their inputs there.",
            "waits": "Nothing runs in a capture, so nothing can be read or waited for.",
        },
    ),
}
