"""What the lessons on latent attention teach with: problems, counts, pictures, recorded tables."""

import pytest
import torch

from rwkv_lessons.bench import __main__ as bench
from rwkv_lessons.bench.commands import mla_ladder
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.lessons.lesson_28 import pictures as latent_model
from rwkv_lessons.lab.lessons.lesson_28 import small_models
from rwkv_lessons.lab.lessons.lessons_25_28 import costs as latent_costs
from rwkv_lessons.lab.lessons.lessons_25_28 import pictures as latent
from rwkv_lessons.lab.lessons.lessons_25_28.evidence import (
    SCORES,
    LatentSizes,
    allocations,
    decoding,
    problem,
    scale_of,
)
from rwkv_lessons.lab.lessons.lessons_26_27.evidence import combine_launch, joined
from rwkv_lessons.mla import mla_reference
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save

SIZES = LatentSizes(B=2, M=3, N=11, H=5, K=6, P=4, V=7, R=12)
INPUTS = ("q", "q_rope", "latent", "k_rope", "w_k", "w_v")


@pytest.mark.parametrize("scores", SCORES)
def test_problems_have_the_librarys_answers(scores):
    known = problem(SIZES, scores=scores)
    o, lse = mla_reference(*(known[name] for name in INPUTS), scale=scale_of(SIZES))
    # q_latent is rounded to float32, as a kernel gets it; scores around 95 have 6e-6 of that.
    torch.testing.assert_close(known["o"], o, rtol=0, atol=1e-5)
    torch.testing.assert_close(known["lse"], lse, rtol=0, atol=1e-4)
    ends = {"high": (90, 110), "low": (-155, -135), "one loud": (8, 15)}.get(scores)
    assert ends is None or ends[0] < float(lse.min()) < float(lse.max()) < ends[1]


@pytest.mark.parametrize("split", [1, 4, 8, 29])
def test_any_number_of_splits_makes_the_same(split):
    sizes, lesson = LatentSizes(B=2, N=29, H=3, R=16), exercises.solutions("27_split_decode")
    parts = combine_launch(lesson.launch_combine, sizes, split).inputs
    assert parts["parts"].shape == (2, -(-29 // split), 3, 16)
    found, known = joined(parts["parts"], parts["part_lse"]), decoding(problem(sizes))
    for name in ("o_latent", "lse"):  # parts are float32
        torch.testing.assert_close(found[name].double(), known[name], rtol=1e-6, atol=1e-6)


def test_what_is_made_is_new_memory_only():
    x = torch.ones(3, 4)
    found = allocations(lambda: (x.mT.unsqueeze(0) + 1) @ x)
    assert [(m.op, m.shape, m.numbers) for m in found[:1]] == [("add", (1, 4, 3), 12)]
    assert found[0].bytes == 2 * 12 * 4 and found[-1].numbers == 16
    assert not allocations(lambda: x.view(2, 6).T)


def zeros(q, q_rope, latent, k_rope, w_k, w_v, scale):
    return q.new_zeros(*q.shape[:2], w_v.shape[1])


def test_zeros_are_rejected():
    result = evaluate("25_absorb_the_weights.absorbed", zeros)
    assert result.attempted and not result.passed


def test_counts_of_the_course():
    assert latent.MINICPM3.expanded / latent.MINICPM3.latent == pytest.approx(22.2, abs=0.03)
    flops = exercises.solutions("25_absorb_the_weights").value_flops
    assert "4.25× at 16, 1.25× at 64, 0.75× at 128" in latent_costs.value_curves(flops).text
    text = latent_costs.prompt_curves().text
    assert "even at 85" in text and "even at 171" in text
    one = latent_costs.part_bytes(1) / latent_costs.latent_bytes(512)
    assert one == pytest.approx(4 * 40 * 256 / 512 / 288)


def test_pictures_say_what_they_show():
    assert "568 tokens" in latent.cache_sizes().text and "288" in latent.head_reads().text
    model = latent_costs.split_curve([(1, 16384)], 4e12).text
    assert model.startswith("1 × 16,384: ") and "expand_kv" in latent_model.seam().text


@pytest.fixture
def records(tmp_path):
    """Made-up records of the three kinds that the lessons show."""
    here = Provenance("NVIDIA H200", "1", "0", "2000-01-01", "c", "x", "y")
    steps = [Measurement(m, latent.SHAPE, "bfloat16", median_ms=9) for *_, m in latent.RUNGS[:3]]
    save(Record("mla-ladder", here, tuple(steps)), tmp_path)
    save(
        Record(
            "mla-prefill", here, (Measurement("ours", (1, 2, 3), "float16", problem="too large"),)
        ),
        tmp_path,
    )
    whole = Measurement("eager", (1, 5, 3), "bfloat16", host_ms=1500.0)
    full = Measurement("sdpa", (1, 5, 3), "bfloat16", problem="out of memory")
    save(Record("mla-generate", here, (whole, full)), tmp_path)
    return tmp_path


def test_recorded_tables(records, capsys):
    latent.rungs("26_fused_prefill", folder=records)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("→")] == [lines[3]]
    assert [line.split()[-1] for line in lines[1:6]] == ["9,000", "9,000", "?", "?", "?"]
    latent.rungs("26_fused_prefill", measured=True, folder=records)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith(" 9,000") and lines[4].endswith(" ?") and "2000-01-01" in lines[-1]
    latent.recorded("mla-prefill", "A prompt", folder=records)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["3", "heads,", "float16", "1", "×", "2"]
    assert lines[1].split() == ["ours", "too", "large"]
    latent_model.generation(folder=records)
    table = capsys.readouterr().out
    assert "1.50" in table and "out of memory" in table and "1 × 5 × 3" in table


def test_without_a_record_the_tables_say_so(tmp_path, capsys):
    latent.rungs("27_split_decode", folder=tmp_path)
    latent.recorded("mla-decode", "A step", folder=tmp_path)
    latent_model.generation(folder=tmp_path)
    assert capsys.readouterr().out.lower().count("not recorded") == 3
    with pytest.raises(ValueError, match="here is '25', needs one of 25_"):
        latent.rungs("25")


@pytest.mark.parametrize("method", mla_ladder.METHODS)
def test_every_rung_of_the_ladder_is_right(method):
    shape = (2, 37, 3, 16, 32, 16, 16)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given = mla_ladder.make_inputs(shape, "float16", device)
    run, sources = mla_ladder.METHODS[method]
    want = mla_ladder.absorbed(*(x.double() for x in given), 0.2)
    # float16 has 11 bits; scores, weights and sums are rounded to it in torch.
    assert relative_error(run(*given, 0.2), want) < 3e-3
    assert all((exercises.ROOT / source.partition("::")[0]).exists() for source in sources)


def test_the_ladder_runs_on_a_cpu(capsys):
    bench.main(["mla-ladder", "--quick", "--dtype", "float32", "--methods", "expanded,decode"])
    out = capsys.readouterr().out
    assert "expanded" in out and "decode" in out
    with pytest.raises(SystemExit, match="2"):
        bench.main(["mla-ladder", "--quick", "--methods", "flash"])
    assert "no method flash" in capsys.readouterr().err


def test_a_model_is_left_as_it_was():
    model = small_models.small_model("MiniCPM3")
    attention = exercises.solutions("28_inside_a_model").attention
    with small_models.attending(model, attention):
        assert model.config._attn_implementation == small_models.LESSON
    assert model.config._attn_implementation == "eager"
    assert all("expand_kv" not in vars(part) for part in model.modules())
    held, expanded = small_models.cached(model, 10)
    assert (held, expanded) == (2 * 10 * 40 * 4, 2 * 10 * 4 * 36 * 4)
