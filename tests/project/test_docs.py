"""The tables and figures of the README and of the results are what the records give."""

import re
import shutil
from dataclasses import replace

import pytest

from rwkv_lessons.bench import counters, gpu_tests
from rwkv_lessons.bench.commands.record_all import PLANS
from rwkv_lessons.lab.pictures import ladder
from rwkv_lessons.operations import LADDERS
from rwkv_lessons.records.fingerprint import ROOT, fingerprints_of_kernels
from rwkv_lessons.records.schema import RECORDS, Measurement, Provenance, Record, save
from rwkv_lessons.report import tables as blocks
from rwkv_lessons.report import write as readme

PAGE = "# Title\n\n<!-- BEGIN wkv5-ladder -->\n<!-- END wkv5-ladder -->\n\nProse.\n"
GPU = "NVIDIA H200"  # the tests' own numbers, in a folder of their own


@pytest.fixture
def records(tmp_path):
    """A made-up ladder next to the real CUDA C times, and made-up ceilings."""
    folder, here = tmp_path / "records", Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    names = [rung.method for rung in LADDERS["wkv5"].rungs] + ["cuda"]
    rows = [
        Measurement(
            name, (8, 4096, 64, 64), "float32", 5, ms, ms - 1, ms + 1, gb_per_s=7.0, registers=42
        )
        for name, ms in zip(names, range(20, 2, -1), strict=False)
    ]
    save(Record("wkv5-ladder", here, tuple(rows)), folder)
    ceilings = {"copy_bytes_per_s": 4e12, "fp32_flops_per_s": 6e13, "bf16_flops_per_s": 7e14}
    save(Record("ceilings", here, (), ceilings), folder)
    shutil.copy(RECORDS / "nvidia-h200" / "rwkv-cuda-wkv5.json", folder / "nvidia-h200")
    return folder


def test_every_lesson_has_a_row_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[^\]]+\]\(notebooks/(\w+)\.ipynb\) \|", text, re.M)
    assert sorted(rows) == sorted(file.stem for file in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.derived("tables and figures of README.md and docs/", "python -m rwkv_lessons.report")
def test_the_readme_is_up_to_date(monkeypatch):
    """Counting again takes longer than all else: tests/bench/test_counters.py has those blocks."""
    page = (ROOT / "docs/warplens_model.md").read_text(encoding="utf-8")
    shown = {match[2]: match[3].removesuffix("\n") for match in readme.MARKERS.finditer(page)}
    for name in map(counters.name_of, counters.SHAPES):
        monkeypatch.setitem(blocks.BLOCKS, name, lambda folder, name=name: shown[name])
    files = [str(file.relative_to(ROOT)) for file in readme.outdated()]
    assert not files, f"python -m rwkv_lessons.report writes {', '.join(files)}"
    assert "<!-- BEGIN headline -->" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_block_is_filled_and_nothing_else_changes(records):
    page = readme.filled(PAGE, records)
    assert page.startswith("# Title\n\n<!-- BEGIN") and page.endswith("-->\n\nProse.\n")
    line = next(line for line in page.splitlines() if "05 float4" in line)
    assert line.startswith("| 05 float4 | 18.00 | 1.1 | 9.16 | 7 |")
    assert "| finished kernel | 13.00" in page and "2026-11-20" in page
    assert readme.filled(page, records) == page


def test_without_a_record_the_block_says_so(tmp_path):
    page = readme.filled(PAGE, tmp_path)
    assert "Not recorded yet; `python -m rwkv_lessons.bench ladder wkv5 --record`\n<!-- END" in page


NOT_MEASURED = {"colab", "compilers", "timex-counters", "wkv5-counters"}  # or by other commands


@pytest.mark.parametrize("name", sorted(set(blocks.BLOCKS) - NOT_MEASURED))
def test_every_block_names_a_command_that_there_is(name, tmp_path):
    for line in blocks.BLOCKS[name](tmp_path).splitlines():
        command = line.removeprefix("Not recorded yet; `").removesuffix("`")
        assert command in {plan.command for plan in PLANS} | {gpu_tests.COMMAND}


def test_each_block_stands_on_one_page():
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in readme.PAGES]
    names = [name for page in pages for _, name, *_ in readme.MARKERS.findall(page)]
    assert sorted(names) == sorted(
        [*blocks.BLOCKS, "headline", "headline", "colab"]  # README's and the results' first
    )


def test_the_readme_is_a_front_door():
    """Two screens before the library, and one in all for who only looks in."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 160 and lines.index("## The library") <= 90


def test_the_readme_has_the_minutes_that_a_lesson_promises():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"\(notebooks/(\S+)\.ipynb\) \| (\d+) \|", text))
    for name, minutes in told.items():
        title = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        promised = re.search(r'"\*(?:three sittings of )?(\d+) minutes', title)
        assert int(minutes) == int(promised[1]) * (3 if "three sittings" in promised[0] else 1)


def words(page):
    """How many words of prose: no tables, no code, nothing that is generated."""
    text = readme.MARKERS.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"```.*?```|^\|[^\n]*$", "", text, flags=re.S | re.M)
    return len(text.split())


def test_words_after_a_table_are_counted(tmp_path):
    (tmp_path / "page.md").write_text("two words\n\n| a |\n|---|\n\nand three more\n")
    assert words(tmp_path / "page.md") == 5


def docs_without_appendix():
    pages = (ROOT / "docs").rglob("*.md")
    return [page for page in pages if page.parent.name != "appendix"]


def width(table):
    """Characters across a table on a page: a cell stays on one line, a head may break at spaces."""
    head, _, *rows = ([x.strip() for x in line.strip("| ").split(" | ")] for line in table)
    words = (max(map(len, cell.split())) for cell in head)
    cells = (max(len(row[n]) for row in rows) for n in range(len(head)))
    return sum(max(pair) + 2 for pair in zip(words, cells, strict=True))


def test_a_table_of_results_is_no_wider_than_a_laptops_page():
    """110 characters of the site's table type are 770 pixels: its column of text at 1,400."""
    for name in readme.PAGES[1:-2]:  # not of warplens and of compilers
        text = (ROOT / name).read_text(encoding="utf-8")
        for block in readme.MARKERS.findall(text):
            for table in re.findall(r"(?:^\|.*\n)+", block[2], re.M):
                lines = table.splitlines()
                assert width(lines) <= 110, f"{name}: {width(lines)}: {lines[0]}"


def test_the_docs_are_short_enough_to_be_read():
    pages = {page.name: words(page) for page in docs_without_appendix()}
    assert sum(pages.values()) <= 25_000
    assert {name: n for name, n in pages.items() if name.startswith("designs_") and n > 2500} == {}


def test_links_lead_somewhere():
    for page in (
        *ROOT.glob("README*.md"),
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_table_of_shapes_has_a_line_per_shape_and_a_column_per_method(tmp_path):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    rows = [
        Measurement(method, (B, 4, 1, 8), "bfloat16", 5, ms, gb_per_s=7.0, error=1e-3)
        for B, ms in ((1, 0.5), (2, 2.0))
        for method in ("wkv6", "cuda", "doubling")
    ]
    save(Record("wkv6", here, tuple(rows)), tmp_path)
    save(Record("wkv6-backward", here, (replace(rows[0], problem="no memory"),)), tmp_path)
    assert blocks.BLOCKS["wkv6-shapes"](tmp_path).splitlines()[:4] == [
        "| B, T, H, N | dtype | wkv6, forward | cuda, forward | wkv6, both |",
        "|---|---:|---:|---:|---:|",
        "| 1, 4, 1, 8 | bfloat16 | 0.500 | 0.500 | not timed |",
        "| 2, 4, 1, 8 | bfloat16 | 2.000 | 2.000 | – |",
    ]
    assert "bfloat16, both: no memory." in blocks.BLOCKS["wkv6-shapes"](tmp_path)


def test_latent_attention_beside_torch(tmp_path):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    times = {"decode": 0.01, "torch absorbed": 0.03}
    times |= {"decode, graph replay": 0.005, "torch absorbed, graph replay": 0.02}
    rows = [
        Measurement(method, (1, 9, 2, 16, 8, 8), "bfloat16", 5, ms, gb_per_s=7.0, error=1e-3)
        for method, ms in times.items()
    ]
    save(Record("mla-decode", here, tuple(rows)), tmp_path)
    text = blocks.BLOCKS["mla-decode"](tmp_path)
    assert "| 1, 9, 2, 16, 8, 8 | 10.0 | 30.0 | 5.0 | 20.0 | 1.0e-03 |" in text
    assert "3.0 to 4.0 times as fast" in text
    rows += [replace(row, shape=(2, 9, 2, 16, 8, 8)) for row in rows]
    for how, ms in (("", 0.011), (", graph replay", 0.006)):
        rows.append(replace(rows[-1], method=f"paged{how}", median_ms=ms))
    save(Record("mla-decode", here, tuple(rows)), tmp_path)
    text = blocks.BLOCKS["mla-decode"](tmp_path)
    assert "| paged | paged, graph | error |" in text
    assert "| 1, 9, 2, 16, 8, 8 | 10.0 | 30.0 | 5.0 | 20.0 | – | – |" in text
    assert "| 2, 9, 2, 16, 8, 8 | 10.0 | 30.0 | 5.0 | 20.0 | 11.0 | 6.0 |" in text
    for how, ms in (("", 0.007), (", graph replay", 0.003)):
        rows.append(replace(rows[0], method=f"fp8{how}", median_ms=ms))
    save(Record("mla-decode", here, tuple(rows)), tmp_path)
    text = blocks.BLOCKS["mla-decode"](tmp_path)
    assert "| 1, 9, 2, 16, 8, 8 | fp8 | 7.0 | 3.0 |" in text
    written = (Measurement("latent", (2, 100, 10), "bfloat16", 1, host_ms=500.0),)
    save(Record("mla-generate", here, written), tmp_path)
    assert "| 2, 100, 10 | 40 |" in blocks.BLOCKS["mla-generate"](tmp_path)


def test_a_block_nobody_generates_is_an_error(records):
    with pytest.raises(ValueError, match="'wkv99'"):
        readme.filled(PAGE.replace("wkv5-ladder", "wkv99"), records)


def test_a_number_changed_by_hand_is_found_and_mended(tmp_path, capsys, monkeypatch):
    drawn = readme.figures()  # all of them once
    monkeypatch.setattr(readme, "figures", lambda folder=None: drawn)
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
    assert readme.figures(records)[name] == svg
    assert readme.figures(tmp_path / "nowhere") == {}
    other = shutil.copytree(records, tmp_path / "other")
    (file,) = other.rglob("wkv5-ladder.json")
    text = file.read_text(encoding="utf-8")
    assert '"median_ms": 20' in text
    file.write_text(text.replace('"median_ms": 20', '"median_ms": 30'), encoding="utf-8")
    assert readme.figures(other)[name] != svg
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
    assert ladder.floor(folder=records)[0] == pytest.approx(1e3 * 7 * 8 * 4096 * 64**3 / 6e13)


def test_a_ladder_in_two_types_takes_what_there_is_from_the_librarys_own_record(tmp_path):
    here, shape = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y"), (8, 4096, 64, 64)
    rungs = (("08_decay_from_data", 6.0), ("16_the_chunked_kernel", 3.0), ("chunked", 4.0))
    rows = [Measurement(name, shape, "float32", 5, ms) for name, ms in rungs]
    save(Record("wkv6-triton-ladder", here, tuple(rows)), tmp_path)
    library = [
        Measurement("chunked", shape, "bfloat16", 5, 0.5),
        Measurement("cuda", shape, "bfloat16", 5, 2.0),
    ]
    library.append(Measurement("chunked", (1, *shape[1:]), "bfloat16", 5, 0.1))  # another shape
    save(Record("wkv6", here, tuple(library)), tmp_path)

    def cells(label):
        text = ladder.table(ladder.steps("wkv6-triton", folder=tmp_path))
        return next(x for x in text.splitlines() if label in x).split(label)[1].split()

    assert cells("08 decay from data") == ["–", "–", "6.00", "1.0"]
    assert cells("in CUDA") == ["2.00", "3.0", "–", "–"]
    assert cells("the chunked kernel") == ["–", "–", "3.00", "2.0"]
    assert cells("finished kernel") == ["0.50", "12.0", "4.00", "1.5"]
    rows.append(Measurement("16_the_chunked_kernel", shape, "bfloat16", 5, 1.5))
    save(Record("wkv6-triton-ladder", here, tuple(rows)), tmp_path)
    assert cells("the chunked kernel") == ["1.50", "4.0", "3.00", "2.0"]


def test_the_lesson_prints_and_draws(capsys):
    picture = ladder.ladder("07_shared_memory")
    assert capsys.readouterr().out.count("→") == 2  # two rungs in one lesson
    ticks = picture.figure.axes[0].get_yticklabels()
    bold = [tick.get_text() for tick in ticks if tick.get_fontweight() == "bold"]
    assert bold == [rung.label for rung in LADDERS["wkv5"].rungs if rung.stem == "07_shared_memory"]
    assert len(ticks) == len(LADDERS["wkv5"].rungs) + 1 and "in lesson 07_shared_memory" in repr(
        picture
    )


@pytest.mark.parametrize(
    "here, measured, shown",
    [
        ("01_five_loops", False, []),
        ("03_atomic_baseline", False, []),
        ("03_atomic_baseline", True, ["03"]),
        ("06_block_size", False, ["03", "04", "05"]),
        ("06_block_size", True, ["03", "04", "05", "06", "06"]),
        ("07_shared_memory", True, ["03", "04", "05", "06", "06", "07", "07", "finished"]),
    ],
)
def test_no_rung_is_shown_before_it_is_measured(here, measured, shown, capsys):
    picture = ladder.ladder(here, measured=measured)
    rows = capsys.readouterr().out.split("\n\n")[0].replace("→", " ").splitlines()[1:]
    assert [row.split()[0] for row in rows if "?" not in row] == shown
    assert all(row.count("?") == 5 for row in rows if "?" in row)  # registers tell, too
    (axes,) = picture.figure.axes
    assert len(axes.patches) == len(shown)
    assert [t.get_text() for t in axes.texts].count("?") == len(rows) - len(shown)


def test_nothing_is_compared_with_a_rung_that_is_hidden(capsys):
    ladder.ladder("08_decay_from_data", "wkv6")
    assert "1.0" not in capsys.readouterr().out.split("\n\n")[0]


def test_a_lesson_that_is_not_on_the_ladder_is_an_error():
    with pytest.raises(ValueError, match="here is '99_nowhere', needs one of 00_start_here"):
        ladder.ladder("99_nowhere")
    with pytest.raises(ValueError, match="operation is 'wkv9', needs one of wkv5"):
        ladder.ladder("05_float4", "wkv9")


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_files_that_a_page_names_are_there(page):
    """Paths in backticks; those with a placeholder or a made-up lesson stand for others."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rooms = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    named = set(re.findall(rf"`((?:{rooms})/[\w./-]+)(?:::\w+)?`", text))
    missing = {name for name in named if not (ROOT / name).exists()}
    assert {name for name in missing if "NN" not in name and "22_" not in name} == set()


def test_the_glossary_has_a_line_for_each_of_at_most_64_terms():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)\n\n(.+)\n(?=\n##|\Z)", text, re.M)
    assert len(terms) == len(re.findall("^### ", text, re.M)) <= 64
    assert len({name.lower() for name, _ in terms}) == len(terms)
    assert all(line.endswith(".") and len(line) <= 160 for _, line in terms)


def test_a_page_says_once_where_its_numbers_come_from(records):
    text = blocks.BLOCKS["provenance-rwkv5"](records)
    assert text.count("Test GPU") + text.count(GPU) == 1  # a machine, then a line a record
    assert "- 2000-01-01, commit c: `x` (y)" in text


def test_each_line_says_which_of_its_kernels_are_older(tmp_path):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    source = ("rwkv_lessons/wkv5/__init__.py::wkv5",)
    today = fingerprints_of_kernels(*source)
    records = {"wkv5-ladder": {"wkv5": today}, "wkv5": {"wkv5": today, "cuda": ("gone",)}}
    for name, methods in records.items():
        rows = [
            Measurement(x, (8, 4, 1, 8), "float32", 5, 1.0, sources=source, sha256="0", kernels=k)
            for x, k in methods.items()
        ]
        save(Record(name, here, tuple(rows)), tmp_path)
    lines = blocks.BLOCKS["provenance-rwkv5"](tmp_path).splitlines()
    assert [line for line in lines if line.startswith("- ")] == [
        "- 2000-01-01, commit c \\*: `x` (y)",
        "- 2000-01-01, commit c \\*: `x` (y); older kernels: cuda",
    ]
    (note,) = (line for line in lines if line.startswith("\\*"))
    assert "The kernels have not, except those that a line names as older." in note


def test_rows_of_older_kernels_are_marked_where_they_are_shown(tmp_path):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    shape, times = (8, 4096, 64, 64), {"wkv6": 0.5, "fla chunk": 4.0}
    rows = [Measurement(name, shape, "bfloat16", 5, ms) for name, ms in times.items()]
    save(Record("wkv6-peers", here, tuple(rows)), tmp_path)
    assert "again" not in blocks.BLOCKS["headline"](tmp_path)
    old = replace(rows[0], sources=("rwkv_lessons/wkv6/__init__.py::wkv6",), kernels=("gone",))
    save(Record("wkv6-peers", here, (old, rows[1])), tmp_path)
    text = blocks.BLOCKS["headline"](tmp_path)
    assert "| RWKV-6 forward † |" in text and "†: measured with older kernels" in text
    assert "to be measured again: wkv6.**" in blocks.BLOCKS["wkv6-peers"](tmp_path)


def test_a_small_ratio_has_two_digits(tmp_path):
    here = Provenance(GPU, "1", "0", "2000-01-01", "c", "x", "y")
    for ms, ratio in ((1.0, "1.15×"), (0.5, "2.3×")):
        times = {"wkv6": ms, "fla chunk": 1.154}
        rows = [Measurement(x, (8, 4096, 64, 64), "bfloat16", 5, t) for x, t in times.items()]
        save(Record("wkv6-peers", here, tuple(rows)), tmp_path)
        assert f"| {ratio} |" in blocks.BLOCKS["headline"](tmp_path)
