"""Reading a profile: how many launches of which kind, how much idle time, and how to gain time."""

import numpy as np

from rwkv_lessons.lab.course.check import FAILED, PASSED, Row
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.compare import Difference
from rwkv_lessons.lab.evidence.functions import called, function_cases, several, shown
from rwkv_lessons.lab.evidence.verdicts import failed
from rwkv_lessons.records.profiles import Kernel
from warplens.faults import KernelFault


def read_profile(kernels, tokens):
    """Three numbers that say what to do next.

    Args:
        kernels: in the order they ran, one at a time; each has `.name`, `.start` and `.us`, the
            microseconds it took. Torch has "elementwise" in the names of its elementwise kernels.
        tokens: how many tokens were processed.

    Returns:
        kernels per token; the share of the kernel time that is elementwise; the share of the time
        from the first start to the last end in which no kernel ran.
    """
    ### BEGIN SOLUTION
    busy = sum(kernel.us for kernel in kernels)
    elementwise = sum(kernel.us for kernel in kernels if "elementwise" in kernel.name)
    span = kernels[-1].start + kernels[-1].us - kernels[0].start
    return len(kernels) / tokens, elementwise / busy, 1 - busy / span
    ### END SOLUTION


def finish(durations, launch):
    """When the last kernel ends, in microseconds after the first launch.

    The host launches kernel n (0, 1, 2 …) at n · launch, without waiting. The kernel starts at
    once, or as soon as the kernel before it has ended.

    Args:
        durations: of the kernels, microseconds, in order.
        launch: microseconds the host needs from one launch to the next.
    """
    ### BEGIN SOLUTION
    end = 0
    for n, us in enumerate(durations):
        end = max(end, n * launch) + us
    return end
    ### END SOLUTION


MUL, ADD, GEMV = "vectorized_elementwise_kernel<mul>", "elementwise_kernel<add>", "gemv2T_kernel"
DENSE = [Kernel(GEMV, 0, 6), Kernel(MUL, 6, 1), Kernel(ADD, 7, 3)]
SPARSE = [Kernel(GEMV, 0, 2), Kernel(MUL, 8, 2), Kernel(GEMV, 16, 2), Kernel(ADD, 18, 2)]
LATER = [Kernel(name, start + 100, us) for name, start, us in SPARSE]

CASES = (  # what it tests, arguments, the three numbers
    ("no gaps, one token", (DENSE, 1), (3, 0.4, 0)),
    ("gaps between kernels", (SPARSE, 1), (4, 0.5, 0.6)),
    ("two tokens", (SPARSE, 2), (2, 0.5, 0.6)),
    ("the first kernel does not start at 0", (LATER, 2), (2, 0.5, 0.6)),
)
NUMBERS = ("kernels per token", "elementwise share", "idle share")


def answer(function, exercise):
    """Small profiles that can be worked out on paper."""
    random = [("a longer profile", given, exercise.reference(*given)) for given in _profiles()]
    for name, arguments, want in (*CASES, *random):
        try:
            got = several(called(function, *arguments), len(want), NUMBERS)
        except (Difference, KernelFault) as error:
            return failed(name, error, exercise, None, shown(function, arguments))
        for what, x, y in zip(NUMBERS, got, want, strict=True):
            if not abs(x - y) < 1e-9:  # sums of a few small numbers
                hint = f"hint: {exercise.symptoms[what]}"
                return Row("answer", FAILED, name, (f"{what}: {x:.3g}, want {y:.3g}", hint))
    return Row("answer", PASSED, f"{len(CASES) + len(random)} cases")


def _profiles():
    """Made-up profiles of up to 20 kernels, some of them one after the other without a gap.

    And one of 1,100, late: its microseconds are more than a float32 can tell apart.
    """
    random = np.random.default_rng(0)
    for count, first in (*((n, 10) for n in range(1, 21)), (1100, 100_000_010)):
        us, gaps = random.integers(1, 30, count), random.integers(0, 3, count) * 4
        starts = np.cumsum(us + gaps) - us + first
        names = random.choice([MUL, ADD, GEMV], count)
        kernels = [
            Kernel(str(n), int(s), int(d)) for n, s, d in zip(names, starts, us, strict=True)
        ]
        yield kernels, int(random.integers(1, 5))


answer.kind = "answer"

EXERCISES = {
    "read_profile": Exercise(
        minutes=8,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return len(kernels) / tokens, elementwise / busy, 1 - busy / span": "Launches, "
                "time and gaps are three separate questions, each with its own remedy.",
            },
            instead={
                "Shares of launches": "easier to count, but wrong if a few kernels take most of "
                "the time.",
            },
            stretch="Let kernels overlap, as on several streams. `busy` is then the union of "
            "their intervals.",
        ),
        hints=(
            "You need three sums: all microseconds, the elementwise microseconds, and the span.",
            "The share is of time, not of launches. The span runs from the first start to the "
            "end (start + us) of the last kernel.",
            "1 - busy / span, with span = kernels[-1].start + kernels[-1].us - kernels[0].start.",
        ),
        evidence=(answer,),
        symptoms={
            "kernels per token": "Divide the number of all kernels by the number of tokens, and do "
            "not round.",
            "elementwise share": "Add up microseconds, not launches, of every kernel with "
            '"elementwise" anywhere in its name. A share is between 0 and 1.',
            "idle share": "The idle share is the part of the span in which no kernel runs. The "
            "span begins with the first kernel, not at 0, and ends when the last kernel ends.",
        },
    ),
    "finish": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "end = max(end, n * launch) + us": "A kernel waits for the previous kernel and "
                "for its own launch, whichever comes later.",
            },
            instead={
                "max(sum(durations), launch * (n - 1) + last)": "one line, and only a lower "
                "bound: it misses gaps before a long kernel.",
            },
            stretch="Allow at most q launches that have not started. When does the host have to "
            "wait?",
        ),
        hints=(
            "Go through the kernels in order and keep one number: the time at which the device "
            "is free again.",
            "A kernel starts at the later of two times: its launch, and the end of the previous "
            "kernel.",
            "end = max(end, n * launch) + us, for n, us in enumerate(durations).",
        ),
        evidence=(
            function_cases(
                ("one kernel", ([7], 5), 7),
                ("the host is faster: kernels queue up", ([10, 10, 10], 4), 30),
                ("the device is faster: it waits for launches", ([2, 2, 2, 2], 5), 17),
                ("a long kernel, then short ones", ([20, 1, 1, 1], 5), 23),
                ("a gap, a long kernel, then short ones", ([1, 20, 1, 1, 1], 5), 28),
                more=[
                    (list(range(a, b, 3)), n) for a in (1, 9) for b in (10, 40) for n in (0, 5, 15)
                ]
                + [([0.5, 2.25, 0.75], n) for n in (0.25, 1.5)]
                + [([1 << 20] * 1100, 3_000_001)],  # an hour: more than 32 bits count
            ),
        ),
        symptoms={
            "one kernel": "The first kernel is launched at time 0.",
            "the host is faster: kernels queue up": "A kernel launched while another one runs "
            "starts when that one ends.",
            "the device is faster: it waits for launches": "Kernel n cannot start before n·launch.",
            "a long kernel, then short ones": "Launches continue while the long kernel runs, so "
            "the short ones wait in the queue and follow without gaps.",
            "a gap, a long kernel, then short ones": "No total gives this: follow each kernel.",
        },
    ),
}
