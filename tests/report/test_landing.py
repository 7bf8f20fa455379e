"""The first screen of the site, the signs on lessons, the picture of a shared link."""

import io
import re

import pytest

from rwkv_lessons.report import landing
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
