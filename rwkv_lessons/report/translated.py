"""The pages of the site in another language: `python -m rwkv_lessons.report.site FOLDER --lang zh`.

Sphinx makes them by themselves, so that their language, search and side bar are right, and puts
them into a folder of the English site: `zh/`. What is not translated is linked to in English.
"""

import os
import re
from pathlib import Path

from rwkv_lessons.lab.commands import translated
from rwkv_lessons.lab.course import language, translation
from rwkv_lessons.report.address import LINK

FENCE = re.compile(r"(^```.*?^```)", re.S | re.M)


def names(chosen: str, root: Path) -> dict[Path, Path]:
    """{place on the English site: the source of its translation}, for every translated page."""
    sources = {path.relative_to(root): path for path in translated.lessons(chosen)}
    for english in translation.pages(chosen):
        place = english.relative_to(root)
        sources[Path("index.md") if place.name == "README.md" else place] = english
    return sources


def outward(text: str, page: Path, pages: set[Path], chosen: str) -> str:
    """A page's text whose links to pages without a translation lead to the English site."""

    def to(match):
        picture, label, target = match.groups()
        target, _, anchor = target.partition("#")
        place = Path(os.path.normpath(page.parent / target.replace("README.md", "index.md")))
        place = Path(str(place).replace(f"docs/{chosen}/", "docs/"))
        if picture or place.suffix not in (".md", ".ipynb"):
            return match[0]
        up = os.path.relpath(place, page.parent)
        if place in pages and not (anchor and place.name == "index.md"):
            return f"[{label}]({up}{'#' * bool(anchor)}{anchor})"
        up = up if place in pages else os.path.relpath(Path("..") / place, page.parent)
        link = Path(up).with_suffix(".html").as_posix() + "#" * bool(anchor) + anchor
        return f'<a href="{link}">{label}</a>'

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(to, part) for part in parts[::2]]
    return "".join(parts)


def page(english: Path, chosen: str) -> str:
    """A page of Markdown; the anchors in front of its headings are made by `slug` here."""
    text = re.sub(r'^<a id="[^"]+"></a>\n+', "", translated.page(english, chosen), flags=re.M)
    return re.sub(r" ?\[English\]\(README\.md\)", "", text)


def slug(title: str) -> str:
    """The anchor of a heading: that of the English term in brackets at its end, if there is one."""
    term = re.search(r"（([^（）]+)）$", title)
    words = (term[1] if term else title).strip().lower().replace(" ", "-")
    return re.sub(r"[^\w\u4e00-\u9fff-]", "", words)


def switch(pagename: str, spoken: str, root: Path) -> list[tuple[str, str, str]]:
    """(language, its name, link) of the same page in other languages, from a page of the site."""
    up = "../" * pagename.count("/")
    if spoken != language.ENGLISH:
        return [(language.ENGLISH, "English", f"{up}../{pagename}.html")]
    links = []
    for other in translation.languages():
        if pagename in {str(place.with_suffix("")) for place in names(other, root)}:
            tag, name = NAMES.get(other, (other, other))
            links.append((tag, name, f"{up}{other}/{pagename}.html"))
    return links


NAMES = {"zh": ("zh-CN", "中文")}
