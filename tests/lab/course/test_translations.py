"""Lessons in other languages: code and formulas as in English, and nobody reads an old text."""

import ast
import re
import shutil
import warnings

import nbformat
import pytest

from rwkv_lessons.lab.commands import cli, translated
from rwkv_lessons.lab.course import exercises, language, progress, terminal, translation
from rwkv_lessons.lab.course.check import ABSENT, FAILED, PASSED, Row, evaluate, hint
from rwkv_lessons.lab.course.hints import HINTS
from rwkv_lessons.lab.course.predict import outcome
from warplens.pictures.movable import Drawing, movable
from warplens.pictures.style import Picture, figure
from warplens.wording import Speech

STEMS = [path.stem for path in translated.lessons("zh")]
EXACT = re.compile(
    r"\$\$.+?\$\$|\$[^$\n]+\$|```python.*?```|`[^`\n]+`|\]\([^)]+\)|\{effort\}", re.S
)
DRAWING, WORDS = re.compile(r"^```\n.*?^```", re.S | re.M), r"\\text\{[^}]*\}"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
MOST_OLD = 0.1  # of a file; with more it is no translation of this lesson any more


@pytest.fixture(scope="module")
def sources():
    return translated.sources("zh")


@pytest.mark.derived("translations/zh", "lessons translations zh")
def test_translations_are_of_the_english_that_there_is(sources):
    """An edit of the English warns here; its reader gets the English."""
    left = translated.state("zh")
    if names := [f"{what}: {name}" for what, names in left.items() for name in names]:
        warnings.warn("`lessons translations zh` lists " + "; ".join(names), stacklevel=1)
    for file, english in sources.items():
        count = sum(name.startswith(f"{file.name}: ") for name in left["old"] + left["missing"])
        assert count <= MOST_OLD * len(english), f"{file.name}: {count} of {len(english)} are old"


def pairs(sources):
    """(name, English, translation) of all that is up to date."""
    texts = translation.texts("zh")
    for file, english in sources.items():
        for label, source in english.items():
            if (found := texts[source]) is not None:
                yield f"{file.name}: {label}", source, found


def simplified(text):
    """Without what differs rightly: drawings, words in formulas, tables from records, languages."""
    text = translation.GENERATED.sub(" ", DRAWING.sub(" ", re.sub(WORDS, r"\\text{}", text)))
    return re.sub(r"\[\w+\]\(README.*?\)", " ", text).replace("docs/zh/", "docs/")


def test_formulas_code_links_and_numbers_are_those_of_the_english(sources):
    checked = 0
    for name, source, text in pairs(sources):
        source, text = (simplified(x) for x in (source, text))
        assert sorted(set(EXACT.findall(source))) == sorted(set(EXACT.findall(text))), name
        plain, there = (EXACT.sub(" ", x) for x in (source, text))
        assert set(NUMBER.findall(plain)) <= set(NUMBER.findall(there)), name
        assert text.count("<details>") == source.count("<details>"), name
        assert re.findall(r"^#+ ", text, re.M) == re.findall(r"^#+ ", source, re.M), name
        checked += 1
    assert checked > 30


@pytest.mark.parametrize("stem", STEMS)
def test_code_cells_are_the_same(stem):
    path = exercises.NOTEBOOKS / f"{stem}.ipynb"
    english, made = nbformat.read(path, 4), translated.notebook(path, "zh")
    kinds = [
        [(cell.id, cell.cell_type, cell.metadata) for cell in x.cells] for x in (english, made)
    ]
    assert kinds[0] == kinds[1]
    code = [[cell.source for cell in x.cells if cell.cell_type == "code"] for x in (english, made)]
    assert code[0] == code[1]
    assert not [c.id for c in made.cells if translated.EFFORT in c.source]


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Lesson 00 whose second text has another sentence."""
    shutil.copytree(exercises.NOTEBOOKS, tmp_path / "notebooks")
    monkeypatch.setattr(exercises, "NOTEBOOKS", tmp_path / "notebooks")
    path = tmp_path / "notebooks" / f"{STEMS[0]}.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[2].source += " One sentence more."
    nbformat.write(notebook, path)
    return path


def test_a_text_that_changed_is_listed_and_stands_in_english(changed):
    cells = translated.notebook(changed, "zh").cells
    assert cells[2].source.startswith("*这一段的英文原文已有改动")
    assert cells[2].source.endswith("One sentence more.")
    assert "## 课程的走向" in cells[3].source
    assert translated.state("zh")["old"] == [f"{STEMS[0]}.md: {cells[2].id}"]


def test_a_page_keeps_its_translated_sections(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "ROOT", tmp_path)
    monkeypatch.setattr(translation, "FOLDER", tmp_path / "translations")
    (tmp_path / "translations" / "zh").mkdir(parents=True)
    page, made = tmp_path / "README.md", tmp_path / "README.zh.md"
    page.write_text("# One\n\nThe *first*.\n\n## Two\n\n```\n# no heading\n```\n")
    made.write_text("<!-- of: One -->\n# 一\n\n*第一*。\n\n<!-- of: Two -->\n## 二\n")
    translation.texts.cache_clear()
    try:
        assert translated.stamp("zh") == 2
        assert translated.page(page, "zh") == "# 一\n\n*第一*。\n\n## 二\n"
        page.write_text(page.read_text().replace("first", "second"))
        assert translated.page(page, "zh") == (
            f"# One\n\n*{translated.OLD}*\n\nThe *second*.\n\n## 二\n"
        )
        assert translated.state("zh")["old"] == ["README.zh.md: One"]
    finally:
        translation.texts.cache_clear()


def test_start_copies_in_the_language_and_checks_speak_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.json"))
    monkeypatch.setattr("rwkv_lessons.lab.commands.notebooks.work", lambda: tmp_path / "work")
    monkeypatch.setattr("rwkv_lessons.lab.commands.notebooks.relative", str)
    assert cli.main(["start", "--lang", "fr"]) == 2
    assert "no language 'fr'; there are en, zh" in capsys.readouterr().err
    assert cli.main(["start", "--lang", "zh"]) == 0
    copy = (tmp_path / "work" / f"{STEMS[0]}.ipynb").read_text(encoding="utf-8")
    assert "从这里开始" in copy and "../docs/zh/glossary.md" in copy
    assert cli.main(["hint", "00_start_here.double"]) == 0
    assert "提示 1/3：线程可能比元素多" in capsys.readouterr().out
    result = evaluate("00_start_here.double", exercises.load("00_start_here.double").reference)
    assert "在 CPU 上跑了 6 个用例" in str(result) and "已解出" in str(result)
    assert cli.main(["start", "--lang", "en"]) == 0
    assert "Start here" in (tmp_path / "work" / f"{STEMS[0]}.ipynb").read_text(encoding="utf-8")
    assert language.language() == "en"


def test_messages_are_words_of_the_program():
    """What nobody prints any more need not be translated."""
    root, known = exercises.ROOT, set(HINTS.values())
    for folder in ("rwkv_lessons", "warplens", "solutions"):
        for file in (root / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            known |= {x.value for x in nodes if isinstance(getattr(x, "value", None), str)}
    text = "\n".join(known)
    text += "On this page Back to top Previous View Edit Home"  # of the site's theme
    words = {w for m in translation.texts("zh").messages for w in re.findall(r"[a-z]{4,}", m)}
    assert sorted(w for w in words if w not in text) == []


def test_a_message_is_found_with_its_numbers():
    translate = translation.texts("zh").translate
    assert translate("  3 warps: 3 load requests, 2 store requests") == (
        "  3 个 warp：3 次读取请求、2 次写入请求"
    )
    assert translate("2 of 64 threads wait at a barrier, but thread (6, 0, 0) has returned") == (
        "64 个线程中有 2 个在屏障处等待，但线程 (6, 0, 0) 已经返回"
    )
    assert translate("0 atomics · 65 loads per warp and token · no race").endswith(" · 没有竞态")
    assert translate(
        "two blocks (n=64): first difference at [i=32]: NaN, want 1.5; 2 of 3 differ"
    ) == ("两个线程块（n=64）：第一处不同在 [i=32]：得到 NaN，应为 1.5；3 个中有 2 个不同")
    assert translate("nobody translated this") == "nobody translated this"


def in_both_languages(monkeypatch, printed):
    """What `printed` says in English, translated as a stored output is, and what it says itself."""
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    spoken = []
    for chosen in (language.ENGLISH, "zh"):
        monkeypatch.setenv(language.VARIABLE, chosen)
        spoken.append(printed())
    output = nbformat.v4.new_output("stream", text=spoken[0])
    translated._say_in(output, translation.texts("zh"))
    assert spoken[0] != spoken[1]
    return output.text, spoken[1]


ROWS = [
    Row("answer", PASSED, "12 cases on the CPU, against float64"),
    Row("answer", FAILED, "one token (B=1 T=1 H=1 N=64)", ("hint: Use range.", "o is out of it")),
    Row("traffic", FAILED, "65 stores per warp and token, want at most 1: 64 too many", ("o: 64",)),
    Row("this GPU", ABSENT),
    Row(
        "answer",
        FAILED,
        "the state carries from token to token (B=1 T=3 H=1 N=64): first difference at "
        "[b=0, t=0, h=0, j=1]: 0.00819494, want -0.000388621; 189 of 192 differ",
        ("race on s_r[0] (256 such addresses), nothing orders:",),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind} {row.verdict}")
def test_a_stored_row_is_translated_as_it_is_printed(row, monkeypatch):
    shown, said = in_both_languages(monkeypatch, lambda: str(row))
    assert shown == said and row.kind in said


def test_stored_hints_and_outcomes_are_translated_as_they_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(progress, "note_hint", lambda id: 1)
    monkeypatch.setattr(progress, "note_outcome", lambda *_: None)

    def printed():
        hint("00_start_here.double")
        double = exercises.load("00_start_here.double").reference
        print(evaluate("00_start_here.double", double))  # with other ways and what they cost
        print(evaluate("05_float4.kernel", exercises.load("05_float4.kernel").stub))
        for guess in (None, 90):
            monkeypatch.setattr(progress, "prediction", lambda id, guess=guess: guess)
            for unit in ("threads", "load requests", "requests", "warps", "GB"):
                outcome("00_start_here.x", 96, unit)
            outcome("07_shared_memory.x", 5.006, "ms", "recorded")
        return capsys.readouterr().out

    shown, said = in_both_languages(monkeypatch, printed)
    assert shown == said
    assert not re.findall(r"threads|requests|recorded|counted|predicted", said)


@pytest.fixture
def speech(monkeypatch):
    """Pictures speak Chinese once it is called, as after `setup()`, and English until then."""
    monkeypatch.setenv(language.VARIABLE, "zh")
    monkeypatch.setattr(Speech, "say", staticmethod(str))  # another test may have called `setup`
    return lambda: monkeypatch.setattr(Speech, "say", staticmethod(language.say_lines))


def test_a_stored_pictures_description_is_translated_as_a_new_one_has_it(speech):
    text = "blocks of 32 threads: 12 warps fit\nslowest / fastest: 1.00"
    picture = Picture(figure(1), text)
    _, english = picture._repr_png_()
    output = nbformat.v4.new_output(
        "display_data", {"image/png": "", "text/plain": text}, metadata={"image/png": english}
    )
    translated._describe(output, translation.texts("zh"))
    speech()
    _, said = picture._repr_png_()
    assert output.metadata["image/png"]["alt"] == said["alt"] != english["alt"]
    assert repr(picture) == text == output.data["text/plain"]  # what is stored and compared


def test_stored_sliders_are_translated_as_new_ones_are(speech):
    def draw(block, padding):
        return Drawing(9, 9), f"blocks of {block} threads: {padding} warps fit"

    moved = movable({"block": (32, 64), "padding": (0, 1)}, draw)
    before = {"text/html": moved._repr_html_(), "text/plain": repr(moved)}
    output = nbformat.v4.new_output("display_data", before.copy())
    translated._describe(output, translation.texts("zh"))
    speech()
    assert output.data["text/html"] == moved._repr_html_() != before["text/html"]
    assert output.data["text/plain"] == repr(moved)
    assert "带滑块的图：线程块大小、填充" in moved._repr_html_()


def test_lines_are_as_wide_as_they_may_be():
    text = "一个 warp 有 32 个 lane，" * 12
    lines = language.wrapped(text, 40, "  ")
    assert all(language.columns(line) <= 42 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not [line for line in lines if line.strip()[0] in language.CLOSING]
    assert language.wrapped("one two three", 8) == ["one two", "three"]


def test_a_count_is_translated_and_a_sentence_that_ends_in_its_word_is_not():
    texts = translation.texts("zh")
    assert texts.translate("96 registers") == "96 个寄存器"
    sentence = "sectors, if it is not kept in registers"
    assert texts.translate(sentence) == sentence


def test_a_stored_verdict_and_the_race_below_it_are_translated_as_two_texts():
    """The first line of the race would fit on the last line of the verdict, where it is not."""
    lesson = translated.notebook(exercises.NOTEBOOKS / "08_decay_from_data.ipynb", "zh")
    outputs = [x for cell in lesson.cells if cell.cell_type == "code" for x in cell.outputs]
    text = "".join(x.text for x in outputs if x.output_type == "stream")
    assert "s1[0, 0, 0, 0] 上有竞态" in text and "in no fixed order" not in text
