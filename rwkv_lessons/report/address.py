"""The public address of the repository, and links that work where the repository is not.

`address.txt` has it, once it is known. Without it, links in packages stay as they are in README.md.
"""

import re
from pathlib import Path

PLACEHOLDER = "REPOSITORY"  # what a command for readers has while there is no address
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!\w+:|#)([^)\s]+)\)")


def address(root: Path) -> str:
    """What `address.txt` says, without a slash at its end; empty where it says nothing.

    Raises:
        ValueError: it has several lines, or one that is no https address.
    """
    file = root / "address.txt"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [x.strip() for x in text.splitlines() if x.strip() and not x.startswith("#")]
    if len(lines) > 1 or not all(re.fullmatch(r"https://[\w.-]+/\S+", line) for line in lines):
        raise ValueError(f"address.txt has {lines}, needs one address: https://HOST/OWNER/NAME")
    return lines[0].rstrip("/") if lines else ""


def site_address(root: Path) -> str:
    """Where GitHub shows the site of the repository, with a slash at its end; else empty."""
    owner, _, name = address(root).removeprefix("https://github.com/").partition("/")
    return f"https://{owner.lower()}.github.io/{name}/" if name and "/" not in name else ""


def links(root: Path) -> dict[str, str]:
    """The addresses that a package index shows beside a package; empty without an address."""
    home = address(root)
    if not home:
        return {}
    return {
        "Homepage": home,
        "Documentation": f"{home}/blob/main/docs/library.md",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def absolute(text: str, home: str) -> str:
    """A page of the repository's root with its relative links and pictures made absolute."""
    if not home:
        return text

    def to(match):
        picture, label, target = match.groups()
        label = LINK.sub(to, label)
        kind = "raw" if picture else "blob"
        return f"{picture}[{label}]({home}/{kind}/main/{target})"

    return LINK.sub(to, text)
