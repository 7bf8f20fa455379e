"""Pictures with sliders."""

import json
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from warplens.pictures import style
from warplens.pictures.movable import MOST, Drawing, movable


def bar(length, of_what):
    drawing = Drawing(100, 20)
    drawing.box(0, 0, 10 * length, 20, "#123456", f"{length} & <more>")
    drawing.line(0, 0, 5, 5)
    return drawing, f"{length} of {of_what}"


@pytest.fixture
def shown():
    return movable({"length": (1, 2, 3), "of what": ("a", "</script>")}, bar)


def frames(shown):
    page = shown._repr_html_()
    return page, json.loads(re.search(r"json\">(.*?)</script>", page, re.S)[1])["frames"]


def test_every_position_is_drawn_and_said_the_last_slider_fastest(shown):
    captions = [frame["said"] for frame in frames(shown)[1]]
    assert captions[:3] == ["1 of a", "1 of </script>", "2 of a"] and len(captions) == 6
    assert str(shown).splitlines() == captions
    assert repr(shown) == "1 of a (movable: length, of what)"


def test_a_drawing_is_a_whole_svg_in_its_address(shown):
    for frame in frames(shown)[1]:
        kind, _, text = frame["src"].partition(",")
        assert kind == "data:image/svg+xml" and "<" not in text and '"' not in text
        svg = ElementTree.fromstring(unquote(text))
        length = frame["said"][0]
        (word,) = svg.iter("{http://www.w3.org/2000/svg}text")
        assert word.text == f"{length} & <more>"
        assert f"h{length}0v20" in svg[0].get("d")


def test_without_a_script_the_first_position_is_a_still_picture(shown):
    page, all_of_them = frames(shown)
    assert f'<img src="{all_of_them[0]["src"]}" alt="1 of a"' in page
    assert "<noscript><pre>1 of a\n1 of &lt;/script&gt;\n2 of a" in page
    assert page.count("</script>") == 2  # a value cannot end the data


def test_it_may_start_elsewhere():
    values = {"length": (1, 2, 3), "of what": "ab"}
    shown = movable(values, bar, start={"length": 2})
    page, all_of_them = frames(shown)
    assert repr(shown).startswith("2 of a") and f'<img src="{all_of_them[2]["src"]}"' in page
    assert '"at":[1,0]' in page
    with pytest.raises(ValueError):
        movable(values, bar, start={"length": 4})


def test_a_figure_may_be_a_position():
    shown = movable({"n": (1,)}, lambda n: (style.Picture(style.figure(1), "empty"), "empty"))
    assert frames(shown)[1][0]["src"].startswith("data:image/png;base64,iVBOR")


@pytest.mark.parametrize("values", [(), range(MOST + 1)])
def test_none_and_too_many_positions_are_refused(values):
    with pytest.raises(ValueError, match=rf"{len(values)} of 'n' are .* want 1 to {MOST}"):
        movable({"n": values}, bar)
