"""The example of README.md runs, and shows what it says."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_finds_the_race(capsys, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    file = tmp_path / "example.py"
    file.write_text(code)
    exec(compile(code, str(file), "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert "race on x[0]" in shown and "x[i] = x[x.size - 1 - i]" in shown
