"""docs/warplens_five_minutes.md, done as it says."""

import re
from pathlib import Path

import pytest

from warplens.launched import main

PAGE = Path(__file__).parents[2] / "docs" / "warplens_five_minutes.md"


@pytest.fixture(scope="module")
def blocks():
    fenced = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return {kind: [text for k, text in fenced if k == kind] for kind in ("sh", "python", "text")}


def test_the_race_is_found_and_mended_as_the_page_says(blocks, tmp_path, capsys):
    file = tmp_path / "mine.py"
    kernel, mended, test = blocks["python"]
    file.write_text(kernel)
    assert f"{file.name}:softmax" in blocks["sh"][1]
    assert main([f"{file}:softmax"]) == 1
    assert capsys.readouterr().out.startswith(blocks["text"][0])
    assert kernel.count(before := mended.splitlines(keepends=True)[0]) == 1
    file.write_text(kernel.replace(before, mended))
    assert main([f"{file}:softmax", "--html", str(tmp_path / "softmax.html")]) == 0
    output = capsys.readouterr().out
    assert "RACE" not in output and "written: " in output


def test_the_test_finds_it_too(blocks, tmp_path, monkeypatch):
    kernel, mended, test = blocks["python"]
    before = mended.splitlines(keepends=True)[0]
    without_launch = kernel[: kernel.index("x = cuda.to_device")]
    monkeypatch.syspath_prepend(tmp_path)
    for text, races in ((without_launch, True), (without_launch.replace(before, mended), False)):
        (tmp_path / "mine.py").write_text(text)
        monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
        scope = {}
        exec(compile(test, "test_mine.py", "exec"), scope)
        if races:
            with pytest.raises(AssertionError):
                scope["test_softmax_has_no_race"]()
        else:
            scope["test_softmax_has_no_race"]()
