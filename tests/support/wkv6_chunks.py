"""The chunked forward kernel against float64, whole and cut into segments."""

import pytest
import torch

from rwkv_lessons.runtime import devices
from rwkv_lessons.wkv6 import wkv6_doubling
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.chunked import segments

NAMES = ("o", "s1")


@pytest.fixture(autouse=True)
def fresh_tiles():
    chunked.tile_for.cache_clear()
    yield
    chunked.tile_for.cache_clear()


def expected(x, **options):
    return wkv6_doubling(*(y if y is None else y.double() for y in x), **options)


def in_segments(monkeypatch, n):
    """Each sequence in n segments, however short."""
    monkeypatch.setattr(segments, "MIN_TOKENS_PER_SEGMENT", 1)
    monkeypatch.setattr(segments, "MAX_SEGMENTS", n)
    gpu = devices.gpu_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))._replace(
        sms=10**6
    )
    monkeypatch.setattr(devices, "gpu_of", lambda device: gpu)
