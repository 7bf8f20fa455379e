"""The repository's address stands in one file, and goes from there where readers need it."""

import re
import subprocess

import pytest

from rwkv_lessons.lab.course.exercises import ROOT
from rwkv_lessons.report.address import PLACEHOLDER, absolute, address, links

HOME = "https://example.org/owner/rwkv-lessons"


def of(tmp_path, text):
    (tmp_path / "address.txt").write_text(text)
    return tmp_path


def test_an_address_is_a_line_of_its_own(tmp_path):
    assert address(tmp_path) == ""
    assert address(of(tmp_path, "# not yet\n\n")) == "" and links(tmp_path) == {}
    assert address(of(tmp_path, f"# where\n{HOME}/\n")) == HOME
    assert links(tmp_path)["Issues"] == f"{HOME}/issues"


@pytest.mark.parametrize("text", ["example.org/x", "http://example.org/x", f"{HOME}\n{HOME}\n"])
def test_anything_else_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="needs one address"):
        address(of(tmp_path, text))


def test_links_and_pictures_become_absolute():
    page = "[a](docs/a.md#b) ![p](docs/f.svg) [x](https://x.org) [y](#begin) [![p](p.svg)](q.md)"
    assert absolute(page, HOME) == (
        f"[a]({HOME}/blob/main/docs/a.md#b) ![p]({HOME}/raw/main/docs/f.svg) [x](https://x.org) "
        f"[y](#begin) [![p]({HOME}/raw/main/p.svg)]({HOME}/blob/main/q.md)"
    )
    assert absolute(page, "") == page


def test_the_readme_of_a_package_has_no_relative_link_left():
    text = absolute((ROOT / "README.md").read_text(encoding="utf-8"), HOME)
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []


def test_no_placeholder_is_left_once_the_address_is_known():
    """Before, it stands in the one command that every reader has to complete, which says so."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    files = [
        x for x in listed.splitlines() if x.endswith((".md", ".toml", ".yml", ".cff", ".ipynb"))
    ]
    texts = {x: (ROOT / x).read_text(encoding="utf-8") for x in files if (ROOT / x).exists()}
    unknown = rf"\b{PLACEHOLDER}\b|OWNER/|no public address yet|还没有公开地址"
    has = sorted(x for x, text in texts.items() if re.search(unknown, text))
    assert has == ([] if address(ROOT) else ["README.md", "README.zh.md"] if listed else [])
