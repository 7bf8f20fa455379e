"""The first screen of the site, the signs on lessons, the picture of a shared link, a flowchart."""

import io
import re

import pytest

from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report import flowchart, landing
from rwkv_lessons.report.address import site_address


@pytest.fixture
def published(tmp_path):
    (tmp_path / "address.txt").write_text("https://github.com/Owner/lessons\n", encoding="utf-8")
    return tmp_path


def test_the_first_screen_shows_a_check_that_fails_and_one_that_passes():
    text = landing.hero()
    assert "is read before anything was written to it" in text and "line 9: total" in text
    assert text.index("✗ Not yet") < text.index("With cuda.syncthreads()") < text.index("✓ Solved")
    assert text.count("<span") == text.count("</span>") and 'href="#begin"' in text
    assert re.search(r'<img src="[^"]+" alt="[^"]+"', text)


def test_a_lesson_can_be_opened_where_its_repository_is(published, tmp_path_factory):
    signs = dict(landing.signs("05_float4", published))
    assert list(signs) == ["Colab", "Codespaces", "Download"]
    assert signs["Colab"] == (
        "https://colab.research.google.com/github/Owner/lessons/blob/main/notebooks/05_float4.ipynb"
    )
    assert signs["Codespaces"] == "https://codespaces.new/Owner/lessons"
    nowhere = tmp_path_factory.mktemp("nowhere")
    assert [label for label, _ in landing.signs("05_float4", nowhere)] == ["Download"]
    assert site_address(published) == "https://owner.github.io/lessons/"
    assert site_address(nowhere) == ""


def test_a_shared_link_has_a_picture_of_the_size_that_is_asked_for():
    from PIL import Image

    assert Image.open(io.BytesIO(landing.card())).size == (1200, 630)


def test_a_flowchart_is_drawn_with_every_node_and_arrow():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    chart = re.search(r"```mermaid\n(.+?)```", text, re.S)[1]
    drawing = flowchart.svg(chart, 'what "it" says')
    assert drawing.count("marker-end") == len(re.findall("-->", chart))
    assert drawing.count("<rect") == len(set(re.findall(r"\b(\w+)(?=\[| -->|$)", chart, re.M))) - 1
    assert 'aria-label="what &quot;it&quot; says"' in drawing


def test_a_flowchart_that_is_none_is_refused():
    with pytest.raises(ValueError, match="needs a --> b"):
        flowchart.svg("graph TD\n    a -- b", "")
    with pytest.raises(ValueError, match="circle"):
        flowchart.svg("a --> b\nb --> a", "")
