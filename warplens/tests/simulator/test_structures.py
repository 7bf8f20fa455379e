"""Views of one shared memory, and structured arrays, as the tracer of numba.cuda sees them."""

import numpy as np
import pytest
from numba import cuda, float32, float64, from_dtype, int32

from warplens import races, trace
from warplens.faults import TooMuchShared

PARTICLE = np.dtype([("x", "f4"), ("mass", "f8"), ("n", "i4")], align=True)
MINE = from_dtype(PARTICLE)


@cuda.jit
def two_views(x, y):
    first = cuda.shared.array(0, float32)
    second = cuda.shared.array(0, float64)[16:]
    t = cuda.threadIdx.x
    first[t], second[t] = x[t], t
    cuda.syncthreads()
    y[t] = first[31 - t] + second[31 - t]


@cuda.jit
def half_unset(x, y):
    first = cuda.shared.array(0, float32)
    second = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    first[t] = x[t]
    cuda.syncthreads()
    y[t] = second[t + 1]  # of the last thread: nobody wrote it


@cuda.jit
def views_overlap(x, y):
    first = cuda.shared.array(0, float32)
    second = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    first[t] = x[t]
    y[t] = second[15 - t // 2]


def traced(kernel, *args, **options):
    return trace(kernel, 1, 32, *args, **options)


def test_views_of_dynamic_memory_share_what_was_written():
    x, y = np.ones(32, "f4"), np.zeros(32, "f4")
    t = traced(two_views, x, y, sharedmem=128 + 256)
    assert not t.faults and not t.races
    assert (t.arguments[-1] == 32 - np.arange(32)).all()
    assert t.shared_bytes == 128 + 256


def test_an_unset_element_of_a_second_view_is_found():
    t = traced(half_unset, np.ones(32, "f4"), np.zeros(32, "f4"), sharedmem=256)
    (fault,) = t.faults
    assert fault.array == "second" and fault.index == (32,) and fault.thread == (31, 0, 0)


def test_views_of_one_memory_race():
    pairs = races(views_overlap, 1, 32, np.ones(32, "f4"), np.zeros(32), sharedmem=128)
    assert {race.space for race in pairs} == {"shared"}


@cuda.jit
def moved(p, out):
    i = cuda.grid(1)
    if i < p.size:
        p[i].x += p[i].mass * 2
        p[i]["n"] += 1
        p.mass[i] = i
        out[i] = p[i].x + p["n"][i]


@cuda.jit
def mirrored_field(p, out):
    i = cuda.grid(1)
    p[i].x = 1
    out[i] = p[31 - i].x


@cuda.jit
def other_field(p, out):
    i = cuda.grid(1)
    p[i].x = 1
    out[i] = p[31 - i].mass


@cuda.jit
def copied_through_shared(p, out):
    s = cuda.shared.array(32, MINE)
    t = cuda.threadIdx.x
    s[t] = p[t]
    cuda.syncthreads()
    out[t] = s[31 - t].n


@cuda.jit
def field_unset(p, out):
    s = cuda.shared.array(32, MINE)
    t = cuda.threadIdx.x
    s[t].x = p[t].x
    out[t] = s[t].n


def particles():
    p = np.zeros(32, PARTICLE)
    p["x"], p["mass"], p["n"] = 1, 3, np.arange(32)
    return p


def test_fields_of_structures_are_accesses_of_their_own_width():
    t = traced(moved, particles(), np.zeros(40, "f4"))
    assert not t.faults and not t.races
    p, out = t.arguments
    assert (p["x"] == 7).all() and (p["n"] == np.arange(32) + 1).all()
    assert (p["mass"] == np.arange(32)).all() and (out[:32] == 8 + np.arange(32)).all()
    assert {(r.op, r.width) for r in t.rows if r.array == "p"} == {
        *((op, width) for op in ("load", "store") for width in (4, 8))
    }


def test_threads_race_on_a_field_and_not_on_its_neighbours():
    (race,) = races(mirrored_field, 1, 32, particles(), np.zeros(32))
    assert race.array == "p" and race.addresses == 32
    assert races(other_field, 1, 32, particles(), np.zeros(32)) == []


def test_a_structure_past_the_end_is_a_fault():
    (fault,) = trace(other_field, 1, 33, particles(), np.zeros(33)).faults
    assert fault.array == "p" and fault.index == (32,)


@pytest.mark.parametrize("kernel, faults", [(copied_through_shared, 0), (field_unset, 1)])
def test_structures_in_shared_memory_know_which_fields_were_written(kernel, faults):
    assert len(traced(kernel, particles(), np.zeros(32)).faults) == faults


@cuda.jit
def copied(p, q):
    q[cuda.threadIdx.x] = p[cuda.threadIdx.x]


def test_the_copy_of_a_structure_counts_each_field_with_its_own_width():
    counts = traced(copied, particles(), particles())
    assert counts.bytes("global", "load", "p") == 32 * (4 + 8 + 4)
    assert {(row.width, row.requests) for row in counts.rows if row.array == "q"} == {
        (4, 2),
        (8, 1),
    }


SIDE = 128


@cuda.jit
def square_tile(x):
    s = cuda.shared.array((SIDE, SIDE), float32)
    s[0, cuda.threadIdx.x] = x[cuda.threadIdx.x]


@cuda.jit
def dynamic_tile(x):
    s = cuda.shared.array(0, float32)
    s[cuda.threadIdx.x] = x[cuda.threadIdx.x]


def test_shared_arrays_that_no_block_can_have_are_a_fault():
    x = np.zeros(32, "f4")
    (fault,) = trace(square_tile, 1, 32, x).faults
    assert isinstance(fault, TooMuchShared) and "65,536 bytes, a block has 49,152" in str(fault)
    assert not trace(square_tile, 1, 32, x, constants={"SIDE": 110}).faults
    assert not trace(dynamic_tile, 1, 32, x, sharedmem=227 * 1024).faults
    (fault,) = trace(dynamic_tile, 1, 32, x, sharedmem=228 * 1024).faults
    assert "has more than 232,448" in str(fault)
