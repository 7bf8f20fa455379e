"""The website as built, `pytest tests/report/test_built_site.py --site build/site`: `make site`.

Links and figures without a browser; then every page in a headless Chromium, where there is one.
"""

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support import chromium
from support.page_audit import audit


@pytest.fixture(scope="module")
def site(request):
    folder = request.config.getoption("--site")
    if not folder:
        pytest.skip("no --site is given; `make site` builds one")
    return Path(folder).resolve()


class Page(HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.images, self.formulas = set(), [], [], 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        self.formulas += tag == "math"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.images.append(given)


@pytest.fixture(scope="module")
def pages(site):
    files = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.parts]
    return {file: Page(file) for file in files}


def test_every_page_is_there(site, pages):
    names = {file.relative_to(site).as_posix() for file in pages}
    root = Path(__file__).parents[2]
    lessons = {f"notebooks/{path.stem}.html" for path in root.glob("notebooks/[0-9]*.ipynb")}
    docs = {f"docs/{path.stem}.html" for path in root.glob("docs/*.md")}
    assert names >= lessons | docs | {"index.html", "search.html", "api/wkv6.html", "api/lab.html"}
    assert (site / "searchindex.js").stat().st_size > 100_000
    assert names >= {
        "zh/index.html",
        "zh/docs/glossary.html",
        "zh/notebooks/09_the_backward_pass.html",
    }


def test_a_page_in_two_languages_links_both_ways(site):
    english, chinese = site / "notebooks" / "04_drop_the_atomics.html", "zh/notebooks"
    page = (site / chinese / english.name).read_text(encoding="utf-8")
    assert f'href="../../notebooks/{english.name}" hreflang="en"' in page
    assert '<html class="no-js" lang="zh-CN"' in page
    page = english.read_text(encoding="utf-8")
    assert f'href="../{chinese}/{english.name}" hreflang="zh-CN"' in page


def test_links_and_anchors_lead_somewhere(pages):
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].ids if target in pages else {""}
            if not target.exists() or parts.fragment and parts.fragment not in anchors:
                broken.append(f"{file.name}: {link}")
    assert broken == []


def test_figures_are_there_and_have_an_alternative_text(pages):
    for file, page in pages.items():
        for image in page.images:
            source = image["src"]
            assert source.startswith("data:") or (file.parent / source).exists(), (file, source)
            assert image.get("alt", "").strip(), (file, source)
            assert not image["alt"].endswith((".png", ".svg")), (file, source)


def test_every_page_has_what_search_engines_and_keyboards_need(site, pages):
    made_by_sphinx = {"genindex.html", "py-modindex.html", "search.html"}
    found = {file.name: audit(file.read_text(encoding="utf-8")) for file in pages}
    assert {name: x for name, x in found.items() if x and name not in made_by_sphinx} == {}


def test_pages_are_light_and_search_knows_install(site, pages):
    for file, page in pages.items():
        images = {x["src"] for x in page.images if not x["src"].startswith("data:")}
        weight = file.stat().st_size + sum((file.parent / x).stat().st_size for x in images)
        assert weight < 1_500_000, f"{file.name}: {weight:,} bytes"
    assert '"instal"' in (site / "searchindex.js").read_text(encoding="utf-8")  # its stem


def test_commands_in_the_text_can_be_copied(site):
    page = (site / "docs" / "results" / "rwkv6.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "bench wkv6-backward --peers --dtype bfloat16 --methods 'wkv6" in text
    assert "–methods" not in text


LOADED = """
Promise.all([...document.images].map(i => { i.loading = "eager"; return i.decode().then(
  () => i.naturalWidth ? "" : i.src, () => i.src) })).then(all => all.filter(x => x))
"""
FORMULAS = """
[...document.querySelectorAll("math")].map(m => m.getBoundingClientRect())
  .filter(b => !b.width || !b.height).length
"""
FOLDED = 'document.querySelectorAll("details").forEach(d => d.open = true)'
LEFT_OVER = """
[...document.querySelectorAll("article p, article li, article td")]
  .map(e => { e = e.cloneNode(true); e.querySelectorAll("code, math").forEach(c => c.remove());
              return e.textContent })
  .filter(t => /\\$\\S|\\*\\*\\S[^*]*\\*\\*|`/.test(t))
"""


@pytest.fixture(scope="module")
def browser():
    if not chromium.installed():
        pytest.skip("no Chromium here")
    opened = chromium.Browser()
    yield opened
    opened.close()


def test_every_page_opens_without_a_complaint(site, pages, browser):
    found = {}
    for file, page in pages.items():
        browser.width(1280)
        browser.open(file.as_uri())
        browser.run(FOLDED)
        trouble = [*browser.complaints(), *browser.run(LOADED), *browser.run(LEFT_OVER)]
        if hidden := browser.run(FORMULAS):
            trouble.append(f"{hidden} of {page.formulas} formulas are not drawn")
        browser.width(390)
        if (wide := browser.run("document.documentElement.scrollWidth")) > 390:
            trouble.append(f"{wide} pixels wide on a phone")
        if trouble:
            found[file.relative_to(site).as_posix()] = trouble
    assert found == {}


def test_search_finds_and_the_dark_is_dark(site, browser):
    browser.width(1280)
    browser.open(f"{(site / 'search.html').as_uri()}?q=float4")
    wait = "new Promise(r => setTimeout(r, 1500))"
    browser.run(wait)
    hits = browser.run('[...document.querySelectorAll("#search-results li a")].map(a => a.href)')
    assert any("notebooks/05_float4.html" in hit for hit in hits)
    browser.open(f"{(site / 'zh' / 'search.html').as_uri()}?q=%E5%85%B1%E4%BA%AB%E5%86%85%E5%AD%98")
    browser.run(wait)  # 共享内存
    hits = browser.run('[...document.querySelectorAll("#search-results li a")].map(a => a.href)')
    assert any("notebooks/07_shared_memory.html" in hit for hit in hits)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.ask("Emulation.setEmulatedMedia", features=dark)
    assert browser.run(colour) != light


def test_a_kernel_can_be_stepped_through(site, browser):
    browser.width(1280)
    browser.open((site / "step_through.html").as_uri())
    said = 'document.querySelectorAll(".stepper [aria-live]")[2].textContent'
    first = browser.run(said)
    assert "32 lanes read 4 bytes each" in first
    last = '[...document.querySelectorAll(".stepper")][2]'
    browser.run(f'{last}.querySelectorAll("button")[2].click()')
    second = browser.run(said)
    assert second != first
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'KEY', bubbles: true}))"
    browser.run(f"{last}.{press.replace('KEY', 'ArrowLeft')}")
    assert browser.run(said) == first
    browser.run(f"{last}.{press.replace('KEY', 'End')}")
    assert "(shared)" in browser.run(said) and "wavefront" in browser.run(said)
    assert browser.run(f'{last}.querySelectorAll("svg rect").length') >= 64
    assert browser.run(f"{last}.textContent").count("request 80 of 80") == 1
    assert browser.complaints() == []


def test_a_picture_can_be_moved_with_the_keyboard(site, browser):
    browser.width(1280)
    browser.open((site / "notebooks" / "07_shared_memory.html").as_uri())
    said = 'document.querySelector(".movable [aria-live]").textContent'
    assert "rows of 64 + 0 floats: 32 wavefronts" in browser.run(said)
    browser.run('document.querySelectorAll(".movable input")[1].focus()')
    for kind in ("keyDown", "keyUp"):
        key = {"key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}
        browser.ask("Input.dispatchKeyEvent", type=kind, **key)
    assert "rows of 64 + 1 floats: 1 wavefront, no conflict" in browser.run(said)
    assert browser.run('document.querySelector(".movable img").alt') == browser.run(said)
    assert browser.complaints() == []


def test_a_broken_page_is_seen(tmp_path, browser):
    page = tmp_path / "broken.html"
    page.write_text(
        '<img src="gone.png" alt="gone"><article><p>$x$</p></article><math></math>'
        '<div style="width: 900px">wide</div><script>console.error("said"); missing()</script>'
    )
    browser.width(390)
    browser.open(page.as_uri())
    assert len(browser.complaints()) >= 3  # a file, a word, a script
    assert browser.run(LOADED) and browser.run(FORMULAS) == 1 and browser.run(LEFT_OVER) == ["$x$"]
    assert browser.run("document.documentElement.scrollWidth") > 390
