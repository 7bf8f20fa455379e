"""Lesson 18's checks: other right answers pass, and what is wrong is named."""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, edit, instead, wrong_answer

LESSON = "18_the_race"
RIGHT = {
    "a dictionary of one's own": (
        "longest_kernel",
        instead(
            """
            found = {}
            for event in events:
                if event["cat"] != "kernel":
                    continue
                found[event["name"]] = found.get(event["name"], 0) + event["dur"]
            name = max(found, key=found.get)
            return [name, float(found[name])]
            """
        ),
    ),
    "microsecond by microsecond": (
        "idle_share",
        instead(
            """
            (whole,) = [event for event in events if event["name"] == "call"]
            busy = set()
            for event in events:
                if event["cat"] == "kernel":
                    busy.update(range(event["ts"], event["ts"] + event["dur"]))
            return (whole["dur"] - len(busy)) / whole["dur"]
            """
        ),
    ),
    "starts and ends, counted": (
        "idle_share",
        instead(
            """
            moves = []
            for event in events:
                if event["cat"] == "kernel":
                    moves += [(event["ts"], 1), (event["ts"] + event["dur"], -1)]
                elif event["cat"] == "call":
                    moves += [(event["ts"], 0), (event["ts"] + event["dur"], 0)]
                    length = event["dur"]
            idle, running, last = 0, 0, None
            for time, change in sorted(moves):
                if running == 0 and last is not None:
                    idle += time - last
                running, last = running + change, time
            return idle / length
            """
        ),
    ),
    "a loop, where there is an end": (
        "break_even",
        instead(
            """
            if one[1] > other[1] or (one[1] == other[1] and one[0] > other[0]):
                return float("inf")
            T = 1
            while one[0] + T * one[1] > other[0] + T * other[1]:
                T += 1
            return T
            """
        ),
    ),
    "warmed up on a stream of its own, three times": (
        "capture",
        edit(
            "f(*static)\ngraph",
            "stream = cuda.Stream()\nstream.wait_stream(cuda.current_stream())\n"
            "with cuda.stream(stream):\n    for _ in range(3):\n        f(*static)\n"
            "cuda.current_stream().wait_stream(stream)\ngraph",
        ),
    ),
    "results of their own": (
        "capture",
        edit("return results", "return [x.clone() for x in results]"),
    ),
    "tensors made with empty_like": (
        "capture",
        edit(
            "static = [x.clone() for x in inputs]",
            "static = [torch.empty_like(x) for x in inputs]\n"
            "for x, y in zip(static, inputs):\n    x.copy_(y)",
        ),
    ),
}  # fmt: skip
NAMED = {
    "longest_kernel.call_counts": "Only events of cat",
    "longest_kernel.time_of_all": "all runs of that kernel",
    "idle_share.overlap_twice": "the device is busy once",
    "idle_share.unsorted": "sort them by start",
    "idle_share.from_first_kernel": "Before the first kernel",
    "break_even.rounds_down": "Round up",
    "break_even.while_it_leads": "leads for a while",
    "capture.renamed": "new inputs have to be copied",
    "capture.cold": "Call f once before",
    "capture.results_of_the_warm_up": "memory that the graph does not write",
    "capture.never_replayed": "NaN",
    "capture.replay_first": "Copy the inputs first",
    "capture.waits_inside": "nothing runs",
    "capture.callers_memory": "with clones",
}


@pytest.mark.parametrize("what", RIGHT)
def test_other_right_answers_pass(what):
    name, change = RIGHT[what]
    exercise = exercises.load(f"{LESSON}.{name}")
    function = exercises.defined(exercise.id, _edited(exercise, what, [change]), f"<{what}>")
    assert evaluate(exercise.id, function).passed, str(evaluate(exercise.id, function))


@pytest.mark.parametrize("which", NAMED)
def test_what_is_wrong_is_named(which):
    name, answer = which.split(".")
    result = evaluate(f"{LESSON}.{name}", wrong_answer(f"{LESSON}.{name}", answer).function)
    assert not result.passed and NAMED[which] in str(result)


@pytest.mark.parametrize("gap", [1, 2])
def test_a_gap_of_the_capture_is_judged_alone(gap):
    id = f"{LESSON}.capture"
    result = evaluate(id, exercises.load(id).reference, gap=gap)
    assert result.right and result.judged == gap


def test_whoever_asks_torch_cuda_is_told_of_the_argument():
    id = f"{LESSON}.capture"
    exercise = exercises.load(id)
    text = _edited(
        exercise, "x", [edit("graph = cuda.CUDAGraph()", "graph = torch.cuda.CUDAGraph()")]
    )
    result = evaluate(id, exercises.defined(id, text, "<x>"))
    assert not result.passed and "cuda" in str(result)
