"""Whether a tag can be released: python tests/support/release.py v0.1.0

Packages, citation and changelog have its version, and the address is known.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def lacking(tag, root=ROOT):
    """What is missing for a release under this tag, a line each."""
    from rwkv_lessons.report.address import address

    version = tag.removeprefix("v")
    places = {
        "rwkv_lessons/__init__.py": rf'^__version__ = "{re.escape(version)}"',
        "warplens/__init__.py": rf'^__version__ = "{re.escape(version)}"',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "CHANGELOG.md": rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$",
    }
    for name, pattern in places.items():
        if not re.search(pattern, (root / name).read_text(encoding="utf-8"), re.M):
            yield f"{name} does not have version {version}"
    if not address(root):
        yield "address.txt does not have the repository's address"


def main():
    problems = list(lacking(sys.argv[1]))
    print("\n".join(problems) or f"{sys.argv[1]} can be released")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
