"""The page of a trace in a browser: stepping by keyboard, light and dark, wide and narrow."""

import numpy as np
import pytest
from numba import cuda, float32
from support import chromium

from warplens import trace


@cuda.jit
def turned(x, y):
    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for n in range(32):
        s[n, t] = x[n, t]
    cuda.syncthreads()
    for n in range(32):
        y[n, t] = s[t, n]


@pytest.fixture(scope="module")
def seen():
    return trace(turned, 1, 32, np.ones((32, 32), "f4"), np.zeros((32, 32), "f4"))


@pytest.fixture(scope="module")
def page(seen, tmp_path_factory):
    """(browser, address of the page)."""
    if not chromium.installed():
        pytest.skip("no Chromium here")
    opened = chromium.Browser()
    file = seen.write_html(tmp_path_factory.mktemp("page") / "page.html")
    yield opened, file.as_uri()
    opened.close()


@pytest.fixture
def browser(page):
    """With the page as it opens, whichever tests ran before."""
    opened, address = page
    opened.width(1400)
    opened.open(address)
    return opened


SAID = 'document.getElementById("said").textContent'
POSITION = 'document.getElementById("position").textContent'
CHOSEN = 'document.querySelector("#source tr.chosen").dataset.line'
PRESSED = '[...document.querySelectorAll("[aria-pressed=true]")].map(b => b.textContent)'
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


def press(browser, key):
    code = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    event = {"key": key, "code": key, "windowsVirtualKeyCode": code, **text}
    browser.ask("Input.dispatchKeyEvent", type="keyDown", **event)
    browser.ask("Input.dispatchKeyEvent", type="keyUp", **event)


def test_requests_are_stepped_through_by_keyboard(browser, seen):
    slow = max(seen.rows, key=lambda row: row.conflicts).line
    assert browser.run(CHOSEN) == f"L{slow}" and "31 conflicts" in browser.run(SAID)
    assert browser.run(PRESSED) == [str(slow)]
    browser.run(f'document.querySelector("#L{slow} button").focus()')
    press(browser, "ArrowRight")
    assert browser.run(POSITION).startswith("2 of 56") and "write" in browser.run(SAID)
    press(browser, "ArrowLeft")
    assert browser.run(POSITION).startswith("1 of 56, a sample of 64")
    for _ in range(3):
        press(browser, "ArrowUp")
    line = slow - 3
    assert browser.run(PRESSED) == [str(line)] and browser.run(CHOSEN) == f"L{line}"
    assert browser.run("document.activeElement.textContent") == str(line)
    assert "4 sectors" in browser.run(SAID)
    browser.run(f'document.querySelector("#L{slow} button").focus()')
    press(browser, "Enter")
    assert browser.run(CHOSEN) == f"L{slow}"
    assert browser.run('document.querySelectorAll("#drawing rect").length') == 32 * 33
    assert browser.complaints() == []


def test_the_first_warp_is_followed_line_by_line(browser):
    choose = 'which.value = "order"; which.dispatchEvent(new Event("change"))'
    browser.run(f'const which = document.getElementById("which"); {choose}')
    lines = []
    for _ in range(4):
        lines.append(browser.run(CHOSEN))
        browser.run('document.querySelector("[data-move=next]").click()')
    assert lines[0] == lines[1] and "read" in browser.run(SAID)
    assert browser.run(POSITION) == "5 of 120"


def test_it_is_dark_where_one_wants_it_and_fits_a_phone(browser):
    light = browser.run(BACKGROUND)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.ask("Emulation.setEmulatedMedia", features=dark)
    assert browser.run(BACKGROUND) != light
    browser.run('document.querySelector(".theme").click()')
    assert browser.run(BACKGROUND) == light
    browser.ask("Emulation.setEmulatedMedia", features=[])
    browser.width(390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
