"""Lesson 21's table of what to look for names what is in the kernel's file."""

import json
import re
import tokenize
from pathlib import Path

from rwkv_lessons.lab.course.exercises import NOTEBOOKS
from rwkv_lessons.wkv6.chunked.hopper import forward


def test_every_name_in_the_table_is_in_the_code():
    cells = json.loads((NOTEBOOKS / "21_the_finished_kernel.ipynb").read_text("utf-8"))["cells"]
    (text,) = ("".join(c["source"]) for c in cells if "| look for |" in "".join(c["source"]))
    firsts = re.findall(r"^\| (`.*?) \|", text, re.M)
    names = {word for first in firsts for word in re.findall(r"\w+", first)}
    with tokenize.open(Path(forward.__file__)) as file:  # docstrings have many words
        tokens = tokenize.generate_tokens(file.readline)
        code = {token.string for token in tokens if token.type == tokenize.NAME}
    assert len(names) > 15
    assert names - code == set()
