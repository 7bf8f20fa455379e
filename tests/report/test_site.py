"""The pages of the website before Sphinx has them: links, figures, formulas, folded help."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import PurePosixPath

import nbformat
import pytest
from support.page_audit import audit

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report import site, translated
from rwkv_lessons.report.formulas import formulas, mathml

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pages = site.write(folder)
    return folder, {page.relative_to(folder).as_posix(): text_of(page) for page in pages}


def text_of(page):
    if page.suffix == ".md":
        return page.read_text(encoding="utf-8")
    cells = nbformat.read(page, 4).cells
    shown = [o.data["text/markdown"] for c in cells for o in c.get("outputs", ())
             if "text/markdown" in o.get("data", {})]  # fmt: skip
    return "\n\n".join([c.source for c in cells if c.cell_type == "markdown"] + shown)


def slug(heading):
    """The anchor of a heading, as GitHub and MyST make it."""
    words = re.sub(r"`|\*", "", heading.lower())
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def broken_links(folder, pages):
    for name, text in pages.items():
        plain = site.CODE.sub(lambda m: "" if "](" in m[0] else m[0], text)
        for path, anchor in re.findall(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)", plain):
            target = (folder / name).parent / path if path else folder / name
            if not target.exists():
                yield name, path
            elif anchor:
                headings = re.findall(r"^#+ (.+)$", text_of(target), re.M)
                if anchor not in map(slug, headings):
                    yield name, f"{path}#{anchor}"


def test_links_lead_to_pages_headings_and_files(written):
    folder, pages = written
    assert list(broken_links(folder, pages)) == []
    pages = {"docs/gpus.md": "[a](results.md#nowhere) [b](gone.md) [`c`](../index.md#begin)"}
    assert [link for _, link in broken_links(folder, pages)] == ["results.md#nowhere", "gone.md"]


@pytest.fixture(scope="module")
def in_chinese(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zh")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LESSONS_LANG", "zh")
        pages = site.write_in("zh", folder)
    return {page.relative_to(folder).as_posix(): text_of(page) for page in pages}


def test_translated_pages_lead_to_one_another_or_to_the_english_ones(written, in_chinese):
    assert {"index.md", "docs/glossary.md", "notebooks/09_the_backward_pass.ipynb"} <= {*in_chinese}
    for name, text in in_chinese.items():
        place = PurePosixPath("zh") / name
        for link in re.findall(r'<a href="([^"#]+)\.html', text):
            there = os.path.normpath(place.parent / link)
            found = [*written[1], *(f"zh/{x}" for x in in_chinese)]
            assert {f"{there}.md", f"{there}.ipynb"} & {*found}, (name, link)
        for link in re.findall(r"\]\((?!\w+:)([^)\s#]+\.(?:md|ipynb))", text):
            assert os.path.normpath(PurePosixPath(name).parent / link) in in_chinese, (name, link)
    lesson = in_chinese["notebooks/04_drop_the_atomics.ipynb"]
    assert "](../docs/glossary.md#register)" in lesson and "<summary>提示 1</summary>" in lesson
    assert (
        '<a href="../../notebooks/10_time_x.html">'
        in in_chinese["notebooks/09_the_backward_pass.ipynb"]
    )
    assert (
        "学会写高速的 GPU kernel" in in_chinese["index.md"] and "已解出" in in_chinese["index.md"]
    )


def test_a_heading_is_found_by_its_english_term():
    assert translated.slug("利特尔法则（Little's law）") == "littles-law"
    assert translated.slug("What the numbers say") == "what-the-numbers-say"


def test_every_page_stands_in_the_side_bar_once(written):
    folder, pages = written
    trees = re.findall(
        r"```\{toctree\}\n:hidden:\n:caption: ([^\n]+)\n\n(.*?)\n```", pages["index.md"], re.S
    )
    named = [name for _, names in trees for name in names.split()]
    assert sorted(named) == sorted(name.rsplit(".", 1)[0] for name in pages if name != "index.md")
    parts = dict(trees)
    assert parts["CUDA, in numba"].split()[0] == "notebooks/03_atomic_baseline"
    assert "docs/own_kernels" in parts["warplens"]


@pytest.mark.derived("texts of pictures in notebooks/", "lessons sync")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_figure_has_an_alternative_text(path):
    """In the notebook, for nbviewer and the like, and on the site: it says what the figure says."""
    there = [
        output
        for cell in nbformat.read(path, 4).cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    for output in there:
        said = site.alternative(output)
        assert len(said) > 20 and not said.startswith("<"), said
        assert output.metadata["image/png"]["alt"] == said, "run `lessons sync`"
    notebook, figures = site.lesson(path)
    shown = [line for line in text_in(notebook) if line.startswith("![")]
    assert len(shown) == len(figures) == len(there)
    for line, name in zip(shown, figures, strict=True):
        assert re.fullmatch(rf"!\[.{{20,}}\]\({name}\)\{{width=\d+px\}}", line), line
        assert figures[name].startswith(b"\x89PNG")


def text_in(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("data", {}).get("text/markdown", "")


def test_images_of_pages_have_an_alternative_text(written):
    _, pages = written
    images = [image for text in pages.values() for image in re.findall(r"!\[(.*?)\]\(", text)]
    assert len(images) > 100 and all(len(alt) > 20 for alt in images)


def test_help_is_folded_below_its_exercise(written):
    folder, _ = written
    for path in NOTEBOOKS:
        cells = nbformat.read(folder / "notebooks" / path.name, 4).cells
        for exercise, after in zip(cells, cells[1:], strict=False):
            if id := exercise.metadata.get("exercise"):
                assert exercise.source == exercises.stub(id)
                assert after.source == site.folded_help(id)
                for summary in ("Hint 1", "Hint 2", "Hint 3", "A solution"):
                    assert f"<summary>{summary}</summary>" in after.source
                assert after.source.count("<details") == after.source.count("</details>") == 4
                assert exercises.solved(id) in after.source


def test_what_is_folded_is_balanced_and_read_as_markdown(written):
    """A blank line after the summary: without it what is inside stays as it is typed."""
    for name, text in written[1].items():
        text = re.sub(r"```.*?```", "", text, flags=re.S)
        assert text.count("<details") == text.count("</details>"), name
        for inside in re.findall(r"<summary>.*?</summary>(.*)", text):
            assert not inside or inside.startswith(("<p>", "<pre>")), (name, inside)


def test_every_formula_becomes_mathml(written):
    found = [formula for text in written[1].values() for formula in formulas(text)]
    assert len(found) > 200
    for formula in found:
        assert mathml(formula).startswith("<math")


def test_formulas_are_told_from_code_and_prices():
    assert formulas("`$x$` costs $5, ```\n$y$\n``` or $a_b$.\n$$c\n= d$$") == ["a_b", "c\n= d"]
    with pytest.raises(ValueError, match="kapa is not known"):
        mathml(r"\kapa + 1")
    with pytest.raises(ValueError, match="braces"):
        mathml(r"\frac{1}{2")
    assert mathml("(-1, 2 - 3)").count('form="prefix"') == 1


def test_the_reference_has_what_is_public():
    pages = site.reference()
    for function in ("wkv6.wkv6", "wkv6.wkv6_step", "interop.fla.chunk_rwkv6"):
        assert any(
            f".. autofunction:: rwkv_lessons.{function}\n" in text for text in pages.values()
        )
    assert ".. autoclass:: warplens.cuda.trace.Trace\n" in pages["lab"]
    assert ".. autofunction:: warplens.kernels.trace\n" in pages["lab"]
    operations = {path.parent.name for path in ROOT.glob("rwkv_lessons/*/reference.py")}
    assert operations <= pages.keys()
    adapters = {path.stem for path in (ROOT / "rwkv_lessons/interop").glob("*.py")}
    assert adapters - {"__init__", "arguments", "patch"} == set(site.INTEROP.split())
    assert ("function", "_cases") not in site.public("lab.course.check")
    assert site.public("wkv6")[0] == ("function", "wkv6")
    assert ("class", "DeadRank") in site.public("distributed")


def test_a_docstring_as_plain_text_in_restructuredtext():
    text = """A sum over *args, `a | b*c`, |x|.

    code * here

| T | method |
|---|--------|
| 1 | any * |

Args:
    x: [B, T], `y_`s.

        more of *it
"""
    assert (
        "\n".join(site.as_rest(text.splitlines()))
        == r"""A sum over \*args, `a | b*c`, \|x\|.

::

        code * here

.. list-table::
   :header-rows: 1

   * - T
     - method
   * - 1
     - any \*

Args:
    x: [B, T], `y_`\ s.

        more of \*it"""
    )


def test_a_page_for_sphinx(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("[home](../README.md#begin) ```sh\nmake```", encoding="utf-8")
    assert site.page(file) == "[home](../index.md#begin) ```sh\nmake```"


def test_built_pages_have_what_search_engines_and_keyboards_need(written, tmp_path):
    """One page of each kind, made by Sphinx as `make site` makes all."""
    folder, kinds = tmp_path / "pages", ("index.md", "docs/results/rwkv7.md", "api/wkv7.md")
    for name in (*kinds, "notebooks/04_drop_the_atomics.ipynb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(written[0] / name, folder / name)
    shutil.copytree(written[0] / "_static", folder / "_static")
    shutil.copytree(written[0] / "docs" / "figures", folder / "docs" / "figures")
    shutil.copytree(written[0] / "notebooks" / "images", folder / "notebooks" / "images")
    command = [sys.executable, "-m", "sphinx", "-Q", "-c", "docs/site", folder, tmp_path / "site"]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in (*kinds, "notebooks/04_drop_the_atomics.ipynb"):
        page = (tmp_path / "site" / name).with_suffix(".html").read_text(encoding="utf-8")
        assert audit(page) == [], name
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "_static/motion.js" in front and "✓ Solved" in front
    assert '"instal"' in (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
    lesson = (tmp_path / "site" / "notebooks" / "04_drop_the_atomics.html").read_text("utf-8")
    assert (tmp_path / "site/_static/notebooks/04_drop_the_atomics.ipynb").exists()
    assert "../_static/notebooks/04_drop_the_atomics.ipynb" in lesson


def test_an_audit_sees_what_is_wrong():
    page = """<html><head><title>Title</title><meta name="viewport" content="x"><link rel="x">
    </head><body><h1>A</h1><h3 id="a">B</h3><img src="https://a/b.png" id="a"><a href="#"></a>
    <pre>code</pre><div class="table-wrapper"></div></body></html>"""
    wrong = " | ".join(audit(page))
    for text in ("no language", "description of 0", "no og:title", "no icon", "level 3 after",
                 "two of the id a", "no alt", "a without a name", "code that", "a table that",
                 "from the network: https://a/b.png"):  # fmt: skip
        assert text in wrong, text
