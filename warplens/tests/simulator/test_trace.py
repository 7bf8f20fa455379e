"""Counts worked out by hand, and every kind of mistake found where it is."""

import numpy as np
import pytest
from helpers.vectors import load4, store4
from numba import cuda, float32

from warplens.cuda.trace import (
    DivergentBarrier,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    UninitialisedRead,
    run,
    trace,
)

N = 64
COLUMNS = 32


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


# --- global memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stride, shift, dtype, sectors",
    [
        (1, 0, np.float32, 4),  # 128 bytes in a row
        (1, 1, np.float32, 5),  # the same, across a sector's edge
        (2, 0, np.float32, 8),
        (8, 0, np.float32, 32),  # a sector for each lane
        (0, 3, np.float32, 1),  # all lanes read one address
        (1, 0, np.float64, 8),
        (1, 0, np.int8, 1),
        (1, 0, np.complex128, 16),
    ],
)
def test_sectors_of_a_load(stride, shift, dtype, sectors):
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i * stride + shift]

    t = trace(kernel, 4, 64, zeros(8 * 256 + 1, dtype=dtype), zeros(256, dtype=dtype))
    size = np.dtype(dtype).itemsize
    assert t.requests("global", "load") == 8
    assert t.bytes("global", "load") == 256 * size
    # A shifted block of 64 starts one element into a sector, in every warp.
    assert t.sectors("global", "load") == 8 * sectors
    assert t.sectors(op="store") == 8 * size


def test_the_atomic_rungs_requests_are_those_the_hardware_counted():
    """An H200 counted warps × T × (1 + 4 N) load requests, and 3 more sectors per load of v."""

    @cuda.jit
    def kernel(r, k, v, decay, u, o):
        B, T, H, _ = r.shape
        thread = cuda.grid(1)
        if thread >= B * H * N:
            return
        j, h, b = thread % N, thread // N % H, thread // (N * H)
        state = cuda.local.array(N, float32)
        for i in range(N):
            state[i] = float32(0)
        for t in range(T):
            value = v[b, t, h, j]
            for i in range(N):
                kv = k[b, t, h, i] * value
                y = r[b, t, h, i] * (u[h, i] * kv + state[i])
                cuda.atomic.add(o, (b, t, h, j), y)
                state[i] = state[i] * decay[h, i] + kv

    B, T, H = 1, 2, 3
    x = [zeros(B, T, H, N) for _ in range(3)]
    t = trace(kernel, 3, 64, *x, zeros(H, N), zeros(H, N), zeros(B, T, H, N))
    warps = B * H * N // 32
    assert t.requests("global", "load") == warps * T * (1 + 4 * N)
    assert t.sectors("global", "load") == warps * T * (1 + 4 * N + 3)
    assert t.requests("global", "atomic") == warps * T * N
    assert t.atomics == 32 * warps * T * N
    (row,) = (row for row in t.rows if row.op == "atomic")
    assert (row.addresses, row.most_on_one, row.together) == (B * T * H * N, N, 1)
    assert not t.races and not t.faults


def test_least_bytes_count_each_sector_of_the_launch_once():
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i % 8] + x[8 + i % 2]

    t = trace(kernel, 2, 64, zeros(64), zeros(128))
    assert t.bytes("global", "load") == 2 * 128 * 4
    assert t.least_bytes("global", "load") == 64
    assert t.least_bytes() == 64 + 128 * 4
    assert t.least_bytes(array="y") == 128 * 4


def test_four_floats_are_one_request():
    def kernel(x, y):
        i = 4 * cuda.grid(1)
        a, b, c, d = load4(x, (i,))
        store4(y, (i,), (d, c, b, a))

    t = trace(kernel, 1, 64, zeros(256), zeros(256))
    for op in ("load", "store"):
        assert t.requests("global", op) == 2
        assert t.sectors("global", op) == 2 * 16
        assert t.bytes("global", op) == 1024
        assert t.accesses("global", op) == 64
    assert [row.width for row in t.rows] == [16, 16]


def test_the_layout_of_an_argument_is_kept():
    t = trace(copy, 1, 32, zeros(64)[::2], zeros(32))
    assert t.sectors(array="x") == 8

    def rows(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1), 0]

    assert trace(rows, 1, 32, zeros(32, 8), zeros(32)).sectors(array="x") == 32
    assert trace(rows, 1, 32, zeros(8, 32).T, zeros(32)).sectors(array="x") == 4


def test_a_warp_is_32_threads_x_first():
    def kernel(x):
        j, i = cuda.grid(2)
        x[i, j] = 1

    t = trace(kernel, 1, (16, 4), zeros(4, 64))
    assert t.requests() == 2 and t.sectors() == 2 * 2 * 2
    t = trace(kernel, 1, (4, 4, 3), zeros(4, 64))
    assert (t.requests(), t.warps) == (2, 2)  # 48 threads: the second warp is half full


# --- divergence ------------------------------------------------------------------------------


def test_branches_are_separate_requests():
    def kernel(x):
        i = cuda.grid(1)
        if i % 2:
            x[i] = 1
        else:
            x[i] = 2

    t = trace(kernel, 1, 32, zeros(32))
    assert t.requests() == 2 and t.accesses() == 32


def test_lanes_in_different_turns_of_a_loop_do_not_share_a_request():
    def kernel(x):
        i = cuda.grid(1)
        for turn in range(4):
            if (i + turn) % 2:
                x[i] = turn

    t = trace(kernel, 1, 32, zeros(32))
    assert t.requests() == 4 and t.accesses() == 64


def test_loops_of_different_length_and_loops_left_early():
    def kernel(x, y):
        i = cuda.grid(1)
        for n in range(i):
            if n == 20:
                break
            y[i] = x[n]
        y[i] = 1
        n = 0
        while n < i % 3:
            y[i] = x[n]
            n += 1

    t = trace(kernel, 1, 32, zeros(64), zeros(32))
    # 20 turns of `for`, 2 of `while`; each lane that takes part reads once per turn.
    assert t.requests(op="load") == 20 + 2
    assert t.accesses(op="load") == sum(min(i, 20) + i % 3 for i in range(32))
    assert t.requests(op="store") == 20 + 2 + 1


def test_lanes_in_different_turns_of_an_outer_while_do_not_share_a_request():
    def kernel(x, y):
        i, part = cuda.grid(1), 0
        while part < 2:
            n = 0
            while n < (i if part else 31 - i):
                y[i] = x[n]
                n += 1
            part += 1

    t = trace(kernel, 1, 32, zeros(64), zeros(32))
    assert t.accesses(op="load") == 32 * 31
    assert t.requests(op="load") == 31 + 31


def test_accesses_before_and_after_a_barrier_do_not_share_a_request():
    text = """
def kernel(x):
    i, part = cuda.grid(1), 0
    while part < 2:
        if i % 2 == part:
            x[i] = part
        part += 1
        cuda.syncthreads()
"""
    scope = {"cuda": cuda}
    exec(text, scope)  # whose loops have no numbers: its text is nowhere
    assert trace(scope["kernel"], 1, 32, zeros(32)).requests() == 2


def test_a_while_loop_in_a_closure_does_what_python_does():
    limit, step = 10, 3

    def kernel(x):
        i, n = cuda.grid(1), 0
        while n < limit:
            n += step
            if n == i:
                continue
            if n > i + 6:
                break
            x[i] += n

    changed, want = zeros(16), zeros(16)
    trace_of = trace(kernel, 1, 16, changed)
    run(kernel, 1, 16, want)
    assert (trace_of.arguments[0] == want).all() and want.any()


def test_two_calls_of_a_device_function_are_two_requests():
    @cuda.jit(device=True)
    def read(x, i):
        return x[i]

    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = read(x, i) + read(x, 0)

    t = trace(kernel, 1, 32, zeros(32), zeros(32))
    (row,) = (row for row in t.rows if row.op == "load")
    assert (row.requests, row.sectors, row.place.text) == (2, 5, "return x[i]")


# --- shared memory ---------------------------------------------------------------------------


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((32, COLUMNS), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    y[i, j] = tile[j, i]


@pytest.mark.parametrize("columns, ways", [(32, 32), (33, 1), (34, 2), (36, 4), (48, 16)])
def test_a_column_of_a_shared_tile(columns, ways):
    x = zeros(32, 32)
    t = trace(transpose, 1, (32, 32), x, x.copy(), constants={"COLUMNS": columns})
    (column,) = (row for row in t.rows if row.space == "shared" and row.op == "load")
    assert column.requests == 32
    assert column.wavefronts == 32 * ways
    assert column.conflicts == 32 * (ways - 1) == t.bank_conflicts
    assert t.shared_wavefronts == 32 * ways + 32


@pytest.mark.parametrize(
    "index, dtype, wavefronts, conflicts",
    [
        (lambda i: 0, np.float32, 1, 0),  # broadcast
        (lambda i: i // 2, np.float32, 1, 0),
        (lambda i: 2 * i, np.float32, 2, 1),
        (lambda i: 32 * i, np.float32, 32, 31),
        (lambda i: 32 * (i % 4), np.float32, 4, 3),
        (lambda i: i, np.int8, 1, 0),  # four lanes share a word
        (lambda i: i, np.float64, 2, 0),  # two half warps
        (lambda i: 2 * i, np.float64, 4, 2),
        (lambda i: 0, np.float64, 1, 0),  # lanes n and n ^ 1 agree: one pass is enough
    ],
)
def test_wavefronts_of_shared_memory(index, dtype, wavefronts, conflicts):
    def kernel(y):
        s = cuda.shared.array(1024, dtype)
        i = cuda.threadIdx.x
        for n in range(32):
            s[n * 32 + i] = 0
        cuda.syncthreads()
        y[i] = s[index(i)]

    t = trace(kernel, 1, 32, zeros(32))
    (row,) = (row for row in t.rows if row.space == "shared" and row.op == "load")
    assert (row.wavefronts, row.conflicts) == (wavefronts, conflicts)


@pytest.mark.parametrize(
    "index, wavefronts, conflicts",
    [
        (lambda i: 4 * i, 4, 0),  # 512 bytes in a row: four quarter warps
        (lambda i: 0, 2, 0),  # everyone the same four floats
        (lambda i: 4 * (i // 2), 2, 0),
        (lambda i: 32 * i, 32, 28),  # every lane at bank 0
        (lambda i: 32 * (i % 8) + 4 * (i % 8), 4, 0),  # rows, each shifted by one step
    ],
)
def test_wavefronts_of_a_four_float_load(index, wavefronts, conflicts):
    def kernel(y):
        s = cuda.shared.array(1024, float32, alignment=16)
        i = cuda.threadIdx.x
        for n in range(32):
            s[n * 32 + i] = float32(0)
        cuda.syncthreads()
        y[i] = load4(s, (index(i),))[0]

    t = trace(kernel, 1, 32, zeros(32))
    (row,) = (row for row in t.rows if row.space == "shared" and row.op == "load")
    assert (row.wavefronts, row.conflicts) == (wavefronts, conflicts)


def test_two_shared_arrays_on_one_line_are_two():
    def kernel(y):
        a, b = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        a[i] = 1
        b[i] = 2
        cuda.syncthreads()
        y[i] = a[31 - i] + b[31 - i]

    t = trace(kernel, 1, 32, zeros(32))
    assert t.requests("shared") == 4 and not t.faults and not t.races


# --- atomics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index, addresses, most, together",
    [(lambda i: 0, 1, 128, 32), (lambda i: i, 128, 1, 1), (lambda i: i % 8, 8, 16, 4)],
)
def test_contention_of_atomics(index, addresses, most, together):
    def kernel(x):
        cuda.atomic.add(x, index(cuda.grid(1)), 1)

    t = trace(kernel, 2, 64, zeros(128))
    (row,) = t.rows
    assert (row.requests, row.accesses, row.op) == (4, 128, "atomic")
    assert (row.addresses, row.most_on_one, row.together) == (addresses, most, together)
    assert not t.races


# --- faults ----------------------------------------------------------------------------------


def below(x):
    x[cuda.grid(1) - 1] = 0


def above(x):
    x[cuda.grid(1) + 1] = 0


def misaligned(x):
    store4(x, (cuda.grid(1),), (0, 0, 0, 0))


def early_return(x):
    if cuda.grid(1) > 40:
        return
    cuda.syncthreads()


def stub(x):
    raise NotImplementedError


@pytest.mark.parametrize(
    "kernel, kind, thread, source",
    [
        (below, OutOfBounds, 0, "x[cuda.grid(1) - 1] = 0"),
        (above, OutOfBounds, 63, "x[cuda.grid(1) + 1] = 0"),
        (misaligned, MisalignedAccess, 1, "store4(x, (cuda.grid(1),), (0, 0, 0, 0))"),
        (early_return, DivergentBarrier, 0, "cuda.syncthreads()"),
        (stub, KernelFault, 0, "raise NotImplementedError"),
    ],
)
def test_a_fault_ends_the_run_and_is_told(kernel, kind, thread, source):
    t = trace(kernel, 1, 64, zeros(64))
    (fault,) = t.faults
    assert type(fault) is kind and fault.thread == (thread, 0, 0)
    assert fault.place.text == source
    assert f"FAULT {kind.__name__}" in t.table() and "counts are of what came before" in t.table()


@pytest.mark.parametrize("alignment, right", [(None, False), (8, False), (16, True), (32, True)])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_vectors_want_arrays_that_are_declared_as_aligned(space, alignment, right):
    def kernel(x):
        s = getattr(cuda, space).array(8, float32, alignment=alignment)
        store4(s, (4,), (0, 1, 2, 3))
        x[0] = s[5]

    t = trace(kernel, 1, 1, zeros(1))
    assert [type(fault) for fault in t.faults] == ([] if right else [MisalignedAccess])
    assert right != ("declare it with alignment=16" in t.table())


@pytest.mark.parametrize("space", ["shared", "local"])
def test_reads_of_memory_that_nobody_wrote(space):
    def kernel(y):
        s = getattr(cuda, space).array(4, float32)
        s[0] = 1
        y[0] = s[0] + s[2]

    t = trace(kernel, 1, 1, zeros(1))
    (fault,) = t.faults
    assert type(fault) is UninitialisedRead and fault.index == (2,) and fault.array == "s"
    assert fault.place.text == "y[0] = s[0] + s[2]"


def test_fresh_shared_memory_in_every_block():
    def kernel(y):
        s = cuda.shared.array(1, float32)
        if cuda.blockIdx.x == 0:
            s[0] = 1
        y[cuda.blockIdx.x] = s[0]

    (fault,) = trace(kernel, 2, 1, zeros(2)).faults
    assert fault.block == (1, 0, 0)


def test_barriers_are_recognised_however_often_they_are_met():
    """CPython changes a call's bytecode once it is hot: the barrier must stay the same one."""

    def kernel(x, y):
        i = cuda.threadIdx.x
        s = cuda.shared.array(64, float32)
        s[i] = x[i]
        for _ in range(40):
            cuda.syncthreads()
            neighbour = s[(i + 1) % 64]
            cuda.syncthreads()
            s[i] = neighbour
        y[i] = s[i]

    t = trace(kernel, 1, 64, zeros(64), zeros(64))
    assert not t.faults and not t.races
    assert len(t.intervals()) == 81


# --- races -----------------------------------------------------------------------------------


def two_barriers(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    for n in range(3):
        s[i] = x[n, i]
        cuda.syncthreads()
        y[n, i] = s[63 - i]
        cuda.syncthreads()


def no_first_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    for n in range(3):
        s[i] = x[n, i]
        y[n, i] = s[63 - i]
        cuda.syncthreads()


def no_second_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    for n in range(3):
        s[i] = x[n, i]
        cuda.syncthreads()
        y[n, i] = s[63 - i]


@pytest.mark.parametrize(
    "kernel, racy", [(two_barriers, 0), (no_first_barrier, 1), (no_second_barrier, 1)]
)
def test_a_missing_barrier_is_a_race(kernel, racy):
    t = trace(kernel, 1, 64, zeros(3, 64), zeros(3, 64))
    assert len(t.races) == racy
    if racy:
        (race,) = t.races
        assert race.array == "s" and (race.op, race.other_op) == ("store", "load")
        assert race.place.text == "s[i] = x[n, i]"
        assert race.other_place.text == "y[n, i] = s[63 - i]"
        assert t.table().index("RACE on s") < t.table().index("global memory")


def test_threads_that_write_one_address_race_and_atomics_do_not():
    def stores(x):
        x[0] = cuda.grid(1)

    def adds(x):
        cuda.atomic.add(x, 0, 1)

    def adds_and_reads(x):
        cuda.atomic.add(x, 0, 1)
        if x[0] > 100:
            x[1 + cuda.grid(1)] = 1

    def adds_to_its_own_and_reads_it(x):
        cuda.atomic.add(x, cuda.grid(1), 1)
        x[64 + cuda.grid(1)] = x[cuda.grid(1)]

    assert [r.op for r in trace(stores, 1, 32, zeros(1)).races] == ["store"]
    assert not trace(adds, 2, 64, zeros(1)).races
    (race,) = trace(adds_and_reads, 1, 32, zeros(64)).races
    assert (race.op, race.other_op) == ("atomic", "load")
    assert not trace(adds_to_its_own_and_reads_it, 2, 32, zeros(128)).races


def test_blocks_race_on_global_memory_whatever_their_barriers():
    def kernel(x, y):
        i = cuda.grid(1)
        x[i] = i
        cuda.syncthreads()
        y[i] = x[127 - i]

    (race,) = trace(kernel, 2, 64, zeros(128), zeros(128)).races
    assert race.thread.split(",")[0] != race.other_thread.split(",")[0]
    assert race.addresses == 128


def test_a_four_float_access_races_with_the_floats_in_it():
    def kernel(x, y):
        i = cuda.threadIdx.x
        x[i + 1] = 0
        y[i] = load4(x, (0,))[0]

    (race,) = trace(kernel, 1, 2, zeros(4), zeros(2)).races
    assert race.array == "x" and race.index in ((1,), (2,))


def test_syncwarp_orders_the_lanes_of_a_warp_only():
    def kernel(x, y):
        i = cuda.threadIdx.x
        x[i] = i
        cuda.syncwarp()
        y[i] = x[i ^ 1]

    assert not trace(kernel, 1, 64, zeros(64), zeros(64)).races

    def across(x, y):
        i = cuda.threadIdx.x
        x[i] = i
        cuda.syncwarp()
        y[i] = x[i ^ 32]

    assert len(trace(across, 1, 64, zeros(64), zeros(64)).races) == 1


# --- the trace itself ------------------------------------------------------------------------


def test_the_table():
    x = zeros(32, 32)
    t = trace(transpose, 1, (32, 32), x, x.copy())
    lines = t.table().splitlines()
    numbers = [row.line for row in t.rows]
    assert lines == [
        "transpose: 1 block of 1,024 threads, 32 warps",
        "",
        "global memory",
        "line  array         requests  sectors  per request  bytes requested  at least",
        f" {numbers[0]}  x      load         32      128         4.00            4,096     4,096"
        "  tile[i, j] = x[i, j]",
        f" {numbers[3]}  y      store        32      128         4.00            4,096     4,096"
        "  y[i, j] = tile[j, i]",
        "      all    load         32      128         4.00            4,096     4,096",
        "      all    store        32      128         4.00            4,096     4,096",
        "",
        "shared memory",
        "line  array         requests  wavefronts  per request  conflicts",
        f" {numbers[1]}  tile   store        32          32         1.00          0"
        "  tile[i, j] = x[i, j]",
        f" {numbers[2]}  tile   load         32       1,024        32.00        992"
        "  y[i, j] = tile[j, i]",
    ]
    assert str(t) == trace(transpose, 1, (32, 32), x, x.copy()).table()


def test_tracing_changes_no_argument_and_keeps_aliases():
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = 5
        x[i + 32] = x[i]

    x = zeros(64)
    t = trace(kernel, 1, 32, x, x)
    assert not x.any()
    assert t.least_bytes(op="store") == 64 * 4 and {row.array for row in t.rows} == {"x"}


def test_some_blocks_of_a_large_launch():
    x = zeros(64 * 1000)
    t = trace(copy, 1000, 64, x, x.copy(), blocks=4)
    assert t.blocks == [(0, 0, 0), (250, 0, 0), (500, 0, 0), (750, 0, 0)]
    assert t.requests() == 2 * 4 * 2 and t.scale == 250
    assert "4 of 1,000 blocks" in t.table()
    assert trace(copy, 1000, 64, x, x.copy(), blocks=[7]).blocks == [(7, 0, 0)]
    with pytest.raises(ValueError, match="blocks has 1000; the grid's blocks are 0 to 999"):
        trace(copy, 1000, 64, x, x.copy(), blocks=[1000])


def test_a_launch_too_large_for_memory_is_refused(monkeypatch):
    monkeypatch.setattr("warplens.cuda.access_log.MOST_ACCESSES", 100)
    with pytest.raises(ValueError, match="blocks=4"):
        trace(copy, 1, 64, zeros(64), zeros(64))


def test_one_request_closely():
    x = zeros(32, 32)
    t = trace(transpose, 1, (32, 32), x, x.copy())
    request = t.request(array="tile", op="load", nth=3)
    assert request.addresses == tuple(4 * (32 * lane + 3) for lane in range(32))
    assert (request.warp, request.block, request.wavefronts) == (3, (0, 0, 0), 32)
    assert t.request(array="x").sectors == 4
    with pytest.raises(ValueError, match="array='z'.*transpose makes 0 such requests"):
        t.request(array="z")
    with pytest.raises(ValueError, match="space is 'shred'"):
        t.requests("shred")


def test_what_happens_between_barriers():
    x = zeros(32, 32)
    t = trace(transpose, 1, (32, 32), x, x.copy())
    (first, barrier), (second, end) = t.intervals()
    assert {(row.array, row.op): n for row, n in first.items()} == {
        ("x", "load"): 32,
        ("tile", "store"): 32,
    }
    assert barrier.text == "cuda.syncthreads()" and end is None
    assert {row.array for row in second} == {"y", "tile"}


def test_what_a_turn_of_the_loops_has_loaded_before_is_a_reload():
    def twice(x, y):
        total = 0.0
        for n in range(3):
            total += x[n] * x[n]
            y[n] = total + x[n]  # after a store nothing is known of x any more

    def once_a_turn(x, y):
        total = x[0]
        for _ in range(3):
            total += x[0]
        y[cuda.threadIdx.x] = total

    def squares(x, y):
        total = 0.0
        for n in range(3):
            total += x[n] * x[n] + x[n]
        y[cuda.threadIdx.x] = total

    def reloads(kernel):
        t = trace(kernel, 1, 64, np.ones(8), np.zeros(64))
        return {row.array: n for row, n in t.reloads.items()}

    assert reloads(squares) == {"x": 2 * 2 * 3}  # two more loads a turn, by two warps
    assert reloads(twice) == {} and reloads(once_a_turn) == {}


def test_a_kernel_that_does_nothing():
    def kernel(x):
        pass

    t = trace(kernel, 1, 32, zeros(1))
    assert t.rows == [] and t.requests() == 0 and t.races == [] and t.least_bytes() == 0
    assert t.table() == "kernel: 1 block of 32 threads, 1 warp"
