"""In which order verify's cases are looked at: each kernel compiled once, the longest first."""

import heapq
import threading

import pytest
import torch

from rwkv_lessons.verify import schedule
from rwkv_lessons.verify.cases import table
from rwkv_lessons.verify.schedule import Schedule, batches, kernels_of
from rwkv_lessons.wkv6.options import takes_options

CORES = 16


def case_of(pattern):
    (found,) = table([pattern])
    return found


def test_cases_with_other_kernels_are_not_in_one_batch():
    groups = {}
    for case in table(["wkv6 / chunked / bfloat16 / small"]):  # a scale is another constant
        groups.setdefault(kernels_of(case), set()).add(case.option)
    assert sorted(map(sorted, groups.values())) == [
        ["all"],
        ["all but packed"],
        ["packed"],
        ["plain", "state"],  # a pointer more
        ["raw"],
        ["w float32"],
    ]


@pytest.mark.parametrize("shape, option", [("huge", "plain"), ("huge", "packed"), ("small", "all")])
def test_numbas_batches_go_by_the_dtypes_that_its_kernels_are_given(shape, option):
    """Options are made of copies: scaled halves are float32, whose kernels are there already."""
    case = case_of(f"wkv6 / cuda / float16 / {shape} / {option} / tame")
    seen = set()

    def method(r, k, v, w, u, s0):
        seen.add(tuple(str(x.dtype).removeprefix("torch.") for x in (r, w)))
        return v, torch.zeros(1, 1, 4, 4)

    x = torch.zeros(1, 2, 1, 4, dtype=torch.float16)
    options = {n: o for n, o in case.options.items() if n in ("scale", "raw_decay")}
    if case.options.get("packed"):
        options["cu_seqlens"] = torch.tensor([0, 2])
    takes_options()(method)(x, x, x, x, torch.zeros(1, 4), None, **options)
    assert {kernels_of(case)[2]} == seen


def test_what_the_library_picks_is_in_the_batch_of_the_method_picked():
    for sizes, method in (
        ("float32 / many heads / plain", "cuda"),
        ("float32 / huge / all", "recurrent"),
        ("bfloat16 / small / raw", "chunked"),
    ):
        picked, named = (case_of(f"wkv6 / {x} / {sizes} / tame") for x in ("wkv6", method))
        assert kernels_of(picked) == kernels_of(named)


def test_what_shares_some_kernels_waits_until_they_are_compiled():
    first = [case for batch in batches(table()) for case in batch.cases]
    waiting = [case for head in batches(table()) for batch in head.then for case in batch.cases]
    options = "raw", "all but packed"  # without a scale, and with one
    of_raw = [case_of(f"wkv6 / chunked / bfloat16 / small / {x} / tame") for x in options]
    assert len({*first} & {*of_raw}) == len({*waiting} & {*of_raw}) == 1
    assert len(first) + len(waiting) == len(table()) == len({*first, *waiting})


def test_cores_end_together():
    """By the estimates: a long batch that starts late would keep one core busy, 15 idle."""
    ready, running, now, work, n = [], [], 0.0, 0.0, 0
    found = batches(table())
    while found or ready or running:
        for batch in found:
            heapq.heappush(ready, (*schedule._urgency(batch), n, batch))
            n += 1
        while ready and len(running) < CORES:
            batch = heapq.heappop(ready)[-1]
            heapq.heappush(running, (now + batch.seconds, n, batch))
            work, n = work + batch.seconds, n + 1
        now, _, done = heapq.heappop(running)
        found = done.then
    assert now <= 1.02 * work / CORES  # as they stand in the table 1.03, by size 1.06


def test_every_batch_is_handed_out_once_and_none_before_what_it_waits_for():
    cases = table(["wkv6 / * / bfloat16"])
    given, done, lock = [], set(), threading.Lock()
    follows = {x.cases[0]: batch.cases[0] for batch in batches(cases) for x in batch.then}
    assert follows

    def take(schedule):
        for batch in schedule:
            with lock:
                given.extend(batch.cases)
                assert follows.get(batch.cases[0]) in {None, *done}
            with lock:
                done.add(batch.cases[0])

    shared = Schedule(cases)
    threads = [threading.Thread(target=take, args=(shared,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(case.name for case in given) == sorted(case.name for case in cases)
