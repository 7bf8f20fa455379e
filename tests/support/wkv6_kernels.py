"""Which kernels a test of the chunked WKV-6 on a GPU is about: Hopper's, or those of all others."""

import pytest

from rwkv_lessons.runtime import replay
from rwkv_lessons.wkv6.chunked import backward, forward

tiled = pytest.mark.tiled


@pytest.fixture(autouse=True)
def kernels(request, monkeypatch):
    """Without `tiled` those of other GPUs, on Hopper, too; and none that a test before remembered.

    For the tests of a module that imports this.
    """
    monkeypatch.setattr(replay, "_known", {})
    if not request.node.get_closest_marker("tiled"):
        for module in (forward, backward):
            monkeypatch.setattr(module, "takes_tiles", lambda *_: False)
