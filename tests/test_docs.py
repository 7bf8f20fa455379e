"""The README's tables and figures are what the records give."""

import shutil

import pytest

from rwkv_lessons.bench import readme
from rwkv_lessons.bench.record import RECORDS, Provenance, Record, Row, save
from rwkv_lessons.bench.rungs import LADDERS
from rwkv_lessons.bench.source import ROOT
from rwkv_lessons.lab import ladder

PAGE = "# Title\n\n<!-- BEGIN wkv5-ladder -->\n<!-- END wkv5-ladder -->\n\nProse.\n"
CARD = "NVIDIA H200"  # the tests' own numbers, in a folder of their own


@pytest.fixture
def records(tmp_path):
    """A made-up ladder next to the real CUDA C times, and made-up ceilings."""
    folder, here = tmp_path / "records", Provenance(CARD, "1", "0", "2000-01-01", "c", "x", "y")
    names = [rung.method for rung in LADDERS["wkv5"]] + ["cuda"]
    rows = [
        Row(name, (8, 4096, 64, 64), "float32", 5, ms, ms - 1, ms + 1, gb_per_s=7.0, registers=42)
        for name, ms in zip(names, range(20, 2, -1), strict=False)
    ]
    save(Record("wkv5-ladder", here, tuple(rows)), folder)
    ceilings = {"copy_bytes_per_s": 4e12, "fp32_flops_per_s": 6e13, "bf16_flops_per_s": 7e14}
    save(Record("ceilings", here, (), ceilings), folder)
    shutil.copy(RECORDS / "nvidia-h200" / "rwkv-cuda-wkv5.json", folder / "nvidia-h200")
    return folder


def test_the_readme_is_up_to_date():
    files = [str(file.relative_to(ROOT)) for file in readme.outdated()]
    assert not files, f"python -m rwkv_lessons.bench readme writes {', '.join(files)}"
    assert "<!-- BEGIN wkv5-ladder -->" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_block_is_filled_and_nothing_else_changes(records):
    page = readme.filled(PAGE, records)
    assert page.startswith("# Title\n\n<!-- BEGIN") and page.endswith("-->\n\nProse.\n")
    line = next(line for line in page.splitlines() if "05 float4" in line)
    assert line.startswith("| 05 float4 | 18.00 (17.00 … 19.00) | 1.1 | 9.16 | 7 |")
    assert "| finished kernel | 13.00" in page and "2026-11-20" in page
    assert readme.filled(page, records) == page


def test_without_a_record_the_block_says_so(tmp_path):
    page = readme.filled(PAGE, tmp_path)
    assert "not recorded" in page and "| 05 float4 | – |" in page


def test_a_block_nobody_generates_is_an_error(records):
    with pytest.raises(ValueError, match="'wkv99'"):
        readme.filled(PAGE.replace("wkv5-ladder", "wkv99"), records)


def test_a_number_changed_by_hand_is_found_and_mended(tmp_path, capsys):
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    readme.command(root=tmp_path)
    readme.command(check=True, root=tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(page.replace("9.16", "1.23"), encoding="utf-8")
    with pytest.raises(SystemExit, match="README.md"):
        readme.command(check=True, root=tmp_path)
    readme.command(root=tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page


def test_the_figure_is_the_same_every_time_and_follows_the_record(tmp_path, records):
    (name, svg), *_ = readme.figures(records).items()
    assert readme.figures(records)[name] == svg and readme.figures(tmp_path)[name] != svg
    file = tmp_path / "figure.svg"
    file.write_text(svg.replace("stroke-width: 2", "stroke-width: 2.01"), encoding="utf-8")
    assert readme._same(file, svg)
    file.write_text(svg.replace("stroke-width: 2", "stroke-width: 3"), encoding="utf-8")
    assert not readme._same(file, svg)


def test_the_ladder_marks_the_lesson(records):
    climbed = ladder.steps(folder=records)
    lines = ladder.table(climbed, "05_float4").splitlines()
    assert [line for line in lines if line.startswith("→")] == [lines[3]]
    assert lines[3].split() == ["→", "05", "float4", "18.00", "1.1", "9.16", "42", "–"]
    assert ladder.floor_ms(folder=records) == pytest.approx(1e3 * 7 * 8 * 4096 * 64**3 / 6e13)


def test_the_lesson_prints_and_draws(capsys):
    picture = ladder.ladder(here="07_shared_memory")
    assert capsys.readouterr().out.count("→") == 2  # two rungs in one lesson
    ticks = picture.figure.axes[0].get_yticklabels()
    bold = [tick.get_text() for tick in ticks if tick.get_fontweight() == "bold"]
    assert bold == [rung.label for rung in LADDERS["wkv5"] if rung.stem == "07_shared_memory"]
    assert len(ticks) == len(LADDERS["wkv5"]) + 1 and "07_shared_memory marked" in repr(picture)


def test_a_lesson_that_is_not_on_the_ladder_is_an_error():
    with pytest.raises(ValueError, match="here is '99_nowhere', needs one of 03_atomic_baseline"):
        ladder.ladder(here="99_nowhere")
