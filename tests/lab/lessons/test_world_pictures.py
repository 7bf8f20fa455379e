"""Pictures of lessons 29 and 30: they draw, and their text has the numbers that they show."""

import torch

from rwkv_lessons.lab.lessons.lesson_29 import pictures as learning
from rwkv_lessons.lab.lessons.lesson_30 import pictures as ranks
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save


def drawn(picture, tmp_path):
    picture.save(tmp_path / "picture.png")
    return repr(picture)


def test_who_waits(tmp_path):
    text = drawn(ranks.schedule(ranks=3, main=4.0, gather=1.0, correction=2.0), tmp_path)
    assert text == "3 ranks one after the other take 14, from zero with a correction 7"


def test_how_far_a_state_reaches(tmp_path):
    halves = -torch.log(torch.tensor(2.0)) * torch.tensor([0.25, 0.5, 1.0])  # bits a token
    text = drawn(ranks.reaching((halves * (1 - 1e-6)).view(1, 3, 1).repeat(60, 1, 4), 8), tmp_path)
    reach = {0: 33, 1: 17, 2: 9}  # the token after 8 / bits tokens still counts
    assert all(f"head {h}" in text and f"token {n}" in text for h, n in reach.items())


def test_costs_need_no_record_of_two_gpus(tmp_path):
    text = drawn(ranks.costs(ranks.assumed_rates(5e-5, 2e11), 4000), tmp_path)
    assert "nothing decays, T = 1,048,576: 2 GPUs 1." in text


def test_two_gpus_are_shown_as_they_were_recorded(tmp_path):
    assert ranks.measured(tmp_path) == "not recorded on two NVIDIA H200s yet"
    where = Provenance("NVIDIA H200", "580", "13.0", "2026-01-02", "abc", "bench", "events")
    about = {"shape": (2, 1, 4096, 64, 64), "dtype": "bfloat16"}
    ms = {"one GPU": 4.0, "two GPUs": 2.5, "main pass": 2.0, "gather": 0.1}
    rows = [Measurement(f"wkv6, {x}", median_ms=y, **about) for x, y in ms.items()]
    rows.append(Measurement("wkv6, one GPU, both passes", problem="out of memory", **about))
    save(Record("sequence-parallel", where, tuple(rows)), tmp_path)
    _, heads, line = ranks.measured(tmp_path).splitlines()
    assert heads.startswith("4,096 tokens ") and heads.endswith("both passes ×")
    # Nobody measured "states", and one GPU has no time of both passes.
    assert line.split() == ["wkv6", "4.00", "2.50", "1.60", "2.00", "0.10"]
    assert heads.index("gather") + len("gather") == len(line)


def test_the_model_of_costs_is_held_against_the_record(tmp_path):
    assert "not recorded" in ranks.checked(tmp_path)
    where = Provenance("NVIDIA H200", "580", "13.0", "2026-01-02", "abc", "bench", "events")
    about, twice = {"shape": ranks.FROM, "dtype": "bfloat16"}, (2, 1, 2 * ranks.FROM[2], 64, 64)
    ms = {"states": 0.6, "main pass": 1.2, "gather": 0.1, "two GPUs": 1.9}
    rows = [Measurement(f"wkv6, {x}", median_ms=y, **about) for x, y in ms.items()]
    rows.append(Measurement("wkv6, two GPUs", twice, "bfloat16", median_ms=3.8))
    save(Record("sequence-parallel", where, tuple(rows)), tmp_path)
    _, *first = ranks.checked(tmp_path).splitlines()
    assert first[0] == "wkv6, 131,072 tokens: 1.90 by the model, 1.90 recorded"
    assert first[1] == "wkv6, 262,144 tokens: 3.70 by the model, 3.80 recorded"


def test_memories_at_the_start(tmp_path):
    text = drawn(learning.memories(lambda C, depth: torch.linspace(-6, -1, C), 64), tmp_path)
    assert "from 280 tokens to 1.9" in text


def test_the_recorded_run(tmp_path):
    assert "digits → share of 512 new lines that are right: 1: 100 %" in drawn(
        learning.reversal_curve(), tmp_path
    )


def test_losses_of_two_runs(tmp_path):
    text = drawn(learning.curves(one_way=[3.0, 2.0], another=[3.0, 1.0]), tmp_path)
    assert text == "one way: 3.0 → 2.0\nanother: 3.0 → 1.0"
