"""What calls leave for later ones is bounded, however many shapes a process sees."""

import importlib
import inspect
import pkgutil

import pytest

pytest.importorskip("triton")
from rwkv_lessons.mla.decode.splits import splits_for  # noqa: E402
from rwkv_lessons.runtime.bounded import MOST, Table  # noqa: E402
from rwkv_lessons.runtime.devices import H200  # noqa: E402
from rwkv_lessons.sequences import hopper_tiles as tiles  # noqa: E402
from rwkv_lessons.sequences.recurrence import tile_for  # noqa: E402

ROOMS = "runtime", "wkv5", "wkv6", "wkv7", "timex", "mla"
# Of a device or a name; or machine code, one for each head size and dtype.
FINITE = {
    "_asked", "_checked", "_method", "assembler", "_look_at", "weights_and_masks", "build",
    "compiled", "hash", "refuse_wrong_triton",
}  # fmt: skip


def caches():
    """Every function with parameters that keeps what it returned: name, its own name, bound."""
    for room in ROOMS:
        package = importlib.import_module(f"rwkv_lessons.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, x in vars(importlib.import_module(module.name)).items():
                if hasattr(x, "cache_parameters") and inspect.signature(x).parameters:
                    yield f"{module.name}.{name}", x.__name__, x.cache_parameters()["maxsize"]


def test_no_cache_that_shapes_fill_is_without_a_bound():
    pytest.importorskip("numba_cuda")
    every = list(caches())
    unbounded = {
        name for name, function, bound in every if bound is None and function not in FINITE
    }
    assert not unbounded
    assert {
        "tile_for",
        "tiles_for",
        "plan",
        "splits_for",
        "_configuration",
        "compiled_kernels",
    } <= {function for _, function, bound in every if bound == MOST}


def test_ten_thousand_lengths_leave_no_more_than_the_bound():
    import torch

    for T in range(1, 10_000):
        tile_for(4, T, 64, 64, H200.sms)
        splits_for(T, T, 132, 1)
    for T in range(1, 2_000):
        tiles.tiles(torch.empty(T, 64, dtype=torch.bfloat16, device="meta"), 64)
    assert tile_for.cache_info().currsize == splits_for.cache_info().currsize == MOST
    assert tiles.described.cache_info().currsize == MOST


def test_a_full_table_is_emptied_and_keeps_the_newest():
    table = Table(3)
    for n in range(10):
        table[n] = -n
        assert len(table) <= 3 and table.get(n) == -n
