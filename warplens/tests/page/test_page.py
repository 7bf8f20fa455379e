"""A trace as a page: well formed, complete, closed to what the source contains, and bounded."""

import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from numba import cuda, float32

from warplens import trace
from warplens.compiled.assembly import Assembly
from warplens.launched import main
from warplens.page import write
from warplens.page.memory_map import element_numbers, memory_map

VOID = {"meta"}


@cuda.jit
def turned(x, y):
    """Sly: </script><img src=x onerror=alert(1)> & "quotes"."""
    s = cuda.shared.array((32, 32), float32)
    t, w = cuda.threadIdx.x, cuda.threadIdx.y
    for n in range(w, 32, 2):
        s[n, t] = x[n, t]
    for n in range(w, 32, 2):
        y[n, t] = s[t, n]  # no barrier before: a race, and 32 lanes at one bank


class Page(HTMLParser):
    """What a page consists of; an element that is not closed in turn is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.titled, self.script = [], [], [], set(), ""
        self.feed(text)
        assert self.open == [], "all elements are closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "title" and self.open[-1][0] == "svg":
            self.titled.add(self.open[-1][1])
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append((tag, len(self.tags)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if any(tag in ("td", "th") for tag, _ in self.open):
            self.cells[-1] += data
        if self.open and self.open[-1][0] == "script" and not self.script:
            self.script = data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def numba():
    return trace(turned, 1, (32, 2), np.ones((32, 32), "f4"), np.zeros((32, 32), "f4"))


@pytest.fixture(scope="module")
def triton():
    if sys.platform != "linux":
        pytest.skip("Triton has wheels for Linux only")
    import torch
    from helpers import kernels_of_triton as kernels

    return trace(kernels.softmax, 4, torch.randn(4, 100), torch.empty(4, 100), 100, BLOCK=128)


@pytest.fixture(scope="module")
def gluon():
    if sys.platform != "linux":
        pytest.skip("Triton has wheels for Linux only")
    from helpers import kernels_of_gluon as kernels

    return trace(kernels.pipelined, 2, *kernels.tensors(), STEPS=4)


@pytest.fixture(params=["numba", "triton", "gluon"])
def any_trace(request):
    return request.getfixturevalue(request.param)


def data_of(text):
    return json.loads(Page(text).script)


def test_a_page_is_well_formed_and_needs_nothing_else(any_trace):
    text = any_trace.html()
    page = Page(text)
    assert not re.search(r"https?://", text)
    for number, (tag, attributes) in enumerate(page.tags, 1):
        if tag == "svg":
            assert number in page.titled or attributes.get("aria-hidden") == "true"
        if tag == "button":
            assert attributes["aria-label"]
        assert not {"src", "href"} & set(attributes) or attributes["href"][0] == "#"
        assert not [name for name in attributes if name.startswith("on")]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.of("a")} <= set(ids)
    assert [tag for tag, _ in page.tags if tag in ("img", "link", "iframe")] == []
    steps = data_of(text)["steps"]
    assert steps and {step["line"] for step in steps} <= set(ids)


def test_what_a_notebook_shows_has_no_script_and_no_name_that_two_would_share(any_trace):
    text = any_trace._repr_html_()
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert "details" in tags and not tags & {"script", "button", "select", "a", "main"}
    assert not [a for _, a in page.tags if "id" in a or "tabindex" in a and a["tabindex"] != "0"]
    assert page.cells[:3] == ["line", "share", "source"]
    assert ":root" not in text
    assert repr(any_trace) == str(any_trace).splitlines()[0]


def counts_of(text):
    """{line: [its counts as text]} of the source, and the heads of these columns."""
    cells = Page(text).cells
    heads = cells[: cells.index("1") if "1" in cells else len(cells)]
    heads = heads[: next(n for n, cell in enumerate(heads) if cell.isdigit())]
    rows = {}
    for n in range(len(heads), len(cells), len(heads)):
        if not cells[n].isdigit():
            break
        rows[int(cells[n])] = cells[n + 3 : n + len(heads)]
    return rows, heads[3:]


def summed(text, head):
    rows, heads = counts_of(text)
    return sum(int(row[heads.index(head)].replace(",", "") or 0) for row in rows.values())


def test_the_counts_by_line_are_those_of_the_trace(numba, triton, gluon):
    for text in (numba.html(), numba._repr_html_()):
        for head, total in {
            "requests": numba.requests(),
            "sectors": numba.sectors(space=None),
            "wavefronts": numba.shared_wavefronts,
            "conflicts": numba.bank_conflicts,
        }.items():
            assert summed(text, head) == total > 0
    text = triton.html()
    assert summed(text, "lanes") == triton.lanes() == 800
    assert summed(text, "exps") == triton.exps == 512
    text = gluon.html()
    assert summed(text, "steps") == len(gluon.steps) and summed(text, "copies in") == 8


def test_each_row_of_the_table_is_a_row_of_the_trace(numba):
    cells = Page(numba.html()).cells
    for row in numba.rows:
        row_cells = [
            str(row.line),
            row.array,
            row.space,
            row.op,
            str(row.width),
            f"{row.requests:,}",
        ]
        assert any(cells[n : n + 6] == row_cells for n in range(len(cells)))


def test_a_race_links_to_the_lines_of_both_threads(numba):
    (race,) = numba.races
    links = {link["href"] for link in Page(numba.html()).of("a")}
    assert {f"#L{race.place.line}", f"#L{race.other_place.line}"} <= links
    assert race.place.line != race.other_place.line


def test_source_is_text_whatever_it_contains(numba):
    text = numba.html()
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; &amp; &quot;quotes" in text
    assert "<img" not in text and len(Page(text).of("script")) == 2


def test_the_requests_of_a_line_are_those_of_the_trace(numba):
    data = data_of(numba.html())
    row = max(numba.rows, key=lambda row: row.conflicts)
    own = [x for x in data["steps"] if x["line"] == f"L{row.line}" and x["space"] == "shared"]
    request = numba.request(line=row.line, array="s", nth=0)
    assert own[0]["lanes"] == [[lane, a] for lane, a in enumerate(request.addresses)]
    assert len(own[0]["passes"]) == request.wavefronts == 32
    assert own[0]["who"] == "block (0, 0, 0), warp 0" and "31 conflicts" in own[0]["said"]
    assert data["totals"][f"L{row.line}"] == numba.requests(line=row.line) == 64
    in_order = [data["steps"][n] for n in data["inOrder"]]
    assert [x["op"] for x in in_order[:3]] == ["load", "store", "load"]
    assert {x["who"] for x in in_order} == {"block (0, 0, 0), warp 0"}


def test_a_page_of_triton_says_for_which_inputs_it_holds(triton, numba):
    assert "this holds for every input of this shape" in triton.html()
    assert "this holds for" not in numba.html()


def test_a_program_of_triton_shows_its_sectors(triton):
    step = data_of(triton.html())["steps"][0]
    assert step["used"][0] == [0, 32] and len(step["used"]) == 13  # 400 bytes
    assert "13 sectors, 400 of 416 bytes" in step["said"]


def test_the_timeline_has_every_copy_and_says_what_hides_it(gluon):
    text = gluon.html()
    bars = [a for a in Page(text).of("rect") if a["class"] in ("copyin", "copyout")]
    assert len(bars) == len([x for x in gluon.flights if x.program == 0]) == 8
    assert "4 copies in, 0 of them with work meanwhile" in text
    boxes = [a for a in Page(text).of("rect") if "data-step" in a]
    assert len(boxes) == sum(x.program == 0 for x in gluon.steps)


def test_what_a_tile_copy_touches_is_on_the_memory_map(gluon):
    for name, shape, _, op, counts in gluon.touched:
        assert (name, shape, op) in [("x", (512, 64), "load"), ("y", (512, 64), "store")]
        assert counts.sum() == counts.size and counts.max() == 1
    assert len(gluon.touched) == 2
    assert "memory map of y [512, 64], written" in gluon.html()


def test_a_memory_map_counts_each_element():
    elements = np.array([0, 0, 0, 5])
    text = memory_map("x", (2, 3), "load", elements)
    assert "read 0.667 times per element on average, 4 of 6 never" in text
    assert 'd="M0 0h1v1H0z"' in text and 'd="M2 1h1v1H2z"' in text
    assert "read 3 times" in text and "read 1 time<" in text
    halved = memory_map("s", (200, 400), "store", np.arange(80_000), each=2, whose=" and block")
    assert "written 0.5 times per element and block on average, each at least once" in halved
    assert len(halved) < 2000 and 'd="M0 0h96v1H0zM0 1h96' in halved
    Page(halved)


def test_elements_are_found_in_any_layout():
    x = np.zeros((4, 6), np.float32).T
    offsets = np.array([24, 4])  # x[0, 1], x[1, 0]
    assert element_numbers(offsets, 4, x.shape, x.strides, 4).tolist() == [1, 4]
    four_at_once = element_numbers(np.array([16]), 16, (8,), (4,), 4)
    assert four_at_once.tolist() == [4, 5, 6, 7]


def test_machine_code_stands_beside_its_source(numba):
    lines = sorted({row.line for row in numba.rows})
    listing = [(None, "S2R R0, SR_TID.X"), (lines[0], "LDG.E R2, [R2]"), (lines[1], "EXIT")]
    file = numba.rows[0].place.file
    sizes = dict.fromkeys("spill_stores spill_loads local_bytes shared_bytes".split(), 0)
    code = Assembly("turned", "sm_90", "", "", 32, **sizes, counts={}, source=file,
                    _places=lambda: iter(listing))  # fmt: skip
    text = numba.html(code)
    spans = [a["data-line"] for a in Page(text).of("span") if "data-line" in a]
    assert spans == [f"L{lines[0]}", f"L{lines[1]}"]
    assert "LDG.E R2, [R2]" in text and "sm_90: 32 registers" in text
    assert "nothing compiles here" in numba.html("nothing compiles here")
    assert "No machine code was given" in numba.html()


LONG = "x" * 5000
MANY = f"    # {LONG}\n" + "\n".join(
    f"    y[(t * {n + 3}) % 4096] = x[(t * t * {n + 7}) % 4096]; s[t] += x[t]" for n in range(90)
)
LARGE = f"""
import numpy as np
from numba import cuda, float32


@cuda.jit
def large(x, y):
    s = cuda.shared.array(128, float32)
    t = cuda.grid(1) % 128
    s[t] = 0
{MANY}


large[2, 128](np.zeros(4096, "f4"), np.zeros(4096, "f4"))
"""


def test_a_large_page_is_bounded_and_says_what_it_lacks(tmp_path, capsys, monkeypatch):
    (tmp_path / "large.py").write_text(LARGE)
    out = tmp_path / "large.html"
    command = [f"{tmp_path}/large.py:large", "--html", str(out)]
    assert main(command) == 1, "y is written by many"
    assert f"written: {out}" in capsys.readouterr().out
    whole = out.read_text()
    assert 200_000 < len(whole.encode()) < 1_500_000
    assert LONG[:150] in whole and LONG[:300] not in whole
    monkeypatch.setattr(write, "MOST_STEPS", 20_000)
    monkeypatch.setattr(write, "MOST_ROWS", 10)
    monkeypatch.setattr(write, "MOST_MAPS", 0)
    monkeypatch.setattr(write, "MOST_LINES", 20)
    assert main(command) == 1
    text = out.read_text()
    assert len(data_of(text)["steps"]) < 40 and "which would make it too large" in text
    assert "76 more lines would make this page too large" in text
    ids = {attributes.get("id") for _, attributes in Page(text).tags}
    assert {link["href"][1:] for link in Page(text).of("a")} <= ids, "no link leads nowhere"
    assert "more rows: print the trace" in text and "more maps would make this page" in text


def test_a_page_that_cannot_be_written_is_refused(tmp_path, capsys):
    file = tmp_path / "small.py"
    file.write_text(LARGE.replace(MANY, "    y[t] = x[t]").replace("[2, 128]", "[1, 32]"))
    assert main([f"{file}:large", "--html", str(tmp_path / "nowhere" / "out.html")]) == 2
    assert "nowhere" in capsys.readouterr().err
