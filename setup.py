"""What pyproject.toml cannot say: links that hold on a package index, from address.txt."""

import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from rwkv_lessons.report.address import absolute, address, links  # noqa: E402

setup(
    long_description=absolute((ROOT / "README.md").read_text(encoding="utf-8"), address(ROOT)),
    long_description_content_type="text/markdown",
    project_urls=links(ROOT),
)
