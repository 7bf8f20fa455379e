"""docs/architecture.md names every room of the package. Who imports whom: test_arrows.py."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rwkv_lessons"


def test_every_room_is_on_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {x.name for x in PACKAGE.iterdir() if x.is_dir() and x.name != "__pycache__"}
    assert {room for room in rooms if f"{room}/" not in page} == set()
