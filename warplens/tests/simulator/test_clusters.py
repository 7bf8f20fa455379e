"""Clusters of two programs, which run as one: copies to both, and the barrier of the cluster."""

import pytest
import torch

pytest.importorskip("triton")
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from warplens.gluon import GluonFault, OnCPU

if not hasattr(hopper, "cluster"):
    pytest.skip("Triton 3.6 has no clusters", allow_module_level=True)

from triton.experimental.gluon.language.nvidia.hopper import cluster
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.constexpr_function
def tokens():
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], [[0, 0]])


@gluon.jit
def copied(x, y, BYTES: gl.constexpr, MULTICAST: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], x.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(loaded, count=1)
    fence_async_shared(cluster=True)
    cluster.arrive(relaxed=True)
    cluster.wait()
    mbarrier.expect(loaded, BYTES)
    tma.async_copy_global_to_shared(x, [64, 0], loaded, tile, multicast=MULTICAST)
    mbarrier.wait(loaded, 0)
    LAYOUT: gl.constexpr = tokens()
    row = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    gl.store(y + row[:, None] * 64 + column[None, :], tile.load(LAYOUT))


@gluon.jit
def first_role(x, TWICE: gl.constexpr):
    cluster.arrive()
    if TWICE:
        cluster.arrive()
    cluster.wait()


@gluon.jit
def other_role(x, ARRIVES: gl.constexpr, WAITS: gl.constexpr):
    if ARRIVES:
        cluster.arrive()
    if WAITS:
        cluster.wait()


@gluon.jit
def with_roles(x, FIRST, TWICE: gl.constexpr, ARRIVES: gl.constexpr, WAITS: gl.constexpr):
    if FIRST:
        cluster.arrive()
        cluster.wait()
    gl.warp_specialize([(first_role, (x, TWICE)), (other_role, (x, ARRIVES, WAITS))], [4], [32])


def described(x, cga_layout):
    layout = gl.NVMMASharedLayout(128, 16, 2, cga_layout=cga_layout)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [64, 64], layout)


def of_columns(count):
    """Rows of 64 columns, of a tensor that has more of them: what a cache's tensors are."""
    return torch.arange(128 * count, dtype=torch.float32).bfloat16().view(128, count)[:, :64]


@pytest.mark.parametrize("columns", [64, 72])
@pytest.mark.parametrize("cga, multicast, part", [(0, True, 1), (0, False, 1), (1, False, 2)])
def test_a_copy_brings_each_program_its_part(columns, cga, multicast, part):
    x, y = of_columns(columns), torch.zeros(64, 64, dtype=torch.bfloat16)
    bytes = 2 * 64 * 64 // part
    OnCPU(copied)[(1,)](described(x, [[cga, 0]]), y, bytes, multicast, num_warps=4)
    assert torch.equal(y, x[64:])
    with pytest.raises(GluonFault, match="never ends"):
        OnCPU(copied)[(1,)](described(x, [[cga, 0]]), y, bytes * 2, multicast, num_warps=4)


@pytest.mark.parametrize("cga_layout, message", [([[1, 0]], "another part"), ([], "no cluster")])
def test_a_copy_to_all_needs_a_tile_that_all_have(cga_layout, message):
    x, y = of_columns(64), torch.zeros(64, 64, dtype=torch.bfloat16)
    with pytest.raises(GluonFault, match=message):
        OnCPU(copied)[(1,)](described(x, cga_layout), y, 8192, True, num_warps=4)


def test_every_role_takes_part_in_the_barrier_of_the_cluster():
    x = torch.zeros(1)
    OnCPU(with_roles)[(2,)](x, False, False, True, True, num_warps=4)


@pytest.mark.parametrize(
    "constants, message",
    [
        ((True, False, True, True), "outside of warp_specialize"),
        ((False, True, True, True), "a second time, without cluster.wait"),
        ((False, False, False, False), "never goes on"),
        ((False, False, False, True), "cluster.wait without cluster.arrive"),
        ((False, False, True, False), "ends between cluster.arrive and cluster.wait"),
    ],
)
def test_what_hangs_a_cluster_is_named(constants, message):
    with pytest.raises(GluonFault, match=message):
        OnCPU(with_roles)[(1,)](torch.zeros(1), *constants, num_warps=4)
