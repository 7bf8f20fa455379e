"""A program per feature of CUDASIM and of the `cuda` it stands for: docs/warplens_cudasim.md.

Run by `python -m warplens run`, it prints for every feature None, or the error that it met.
"""

import contextlib
import io
import json
import math

import numpy as np

try:
    from numba import cuda, float32, float64, int32

    package = "numba.cuda"
except ImportError:
    from numba_cuda_mlir import cuda
    from numba_cuda_mlir.types import float32, float64, int32

    package = "numba_cuda_mlir.numba_cuda"

FEATURES, LIMIT = {}, 4


def feature(name):
    def named(function):
        FEATURES[name] = function
        return function

    return named


def launched(kernel, *arrays, grid=1, block=32, sharedmem=0):
    cuda.jit(kernel)[grid, block, 0, sharedmem](*arrays)
    return arrays[0]


def numbers(n=32, kind=np.float32):
    return np.arange(n).astype(kind)


# The host.
@feature("`cuda.jit` without a signature")
def plain_jit():
    def k(x):
        x[cuda.grid(1)] += 1

    assert launched(k, numbers())[31] == 32


@feature("`cuda.jit` with signatures, as text or types")
def signatures():
    @cuda.jit("void(float32[:], int32)")
    def k(x, n):
        x[cuda.grid(1)] = n

    @cuda.jit([(float32[:], float32)])
    def scaled(x, by):
        x[cuda.grid(1)] *= by

    x = numbers()
    k[1, 32](x, 2.7)
    scaled[1, 32](x, 0.1)
    assert x[5] == np.float32(2) * np.float32(0.1), "scalars take the types of the signature"


@feature("`cuda.jit(device=True)`")
def device_functions():
    @cuda.jit(device=True)
    def twice(value):
        return 2 * value

    def k(x):
        x[cuda.grid(1)] = twice(x[cuda.grid(1)])

    assert launched(k, numbers())[3] == 6


@feature("`forall`")
def forall():
    @cuda.jit
    def k(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = 7

    x = numbers(100)
    k.forall(100)(x)
    assert (x == 7).all()


@feature("`cuda.to_device`, `copy_to_host`, `copy_to_device`")
def copies():
    x = cuda.to_device(numbers())
    assert x.copy_to_host()[5] == 5
    x.copy_to_device(numbers()[::-1].copy())
    assert x[0] == 31 and cuda.to_device(numbers(), to=x) is x and x.copy_to_host()[0] == 0


@feature("`cuda.device_array`, `device_array_like`")
def device_arrays():
    x = cuda.device_array((4, 8), np.float32, order="F")
    assert cuda.device_array_like(x).strides == x.strides == (4, 16)
    assert x.T[2:4].reshape(8).shape == (8,)


@feature("`pinned_array`, `mapped_array`, `managed_array`, `cuda.pinned`")
def host_memory():
    def k(x):
        x[cuda.grid(1)] = 3

    for make in (cuda.pinned_array, cuda.mapped_array, cuda.managed_array):
        assert (launched(k, make(32)) == 3).all()
    assert cuda.pinned_array_like(numbers()).dtype == np.float32
    with cuda.pinned(numbers()):
        pass


@feature("`cuda.In`, `Out`, `InOut`")
def hints():
    @cuda.jit
    def k(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)]
        x[cuda.grid(1)] = 9

    x, y = numbers(), np.zeros(32, np.float32)
    k[1, 32](cuda.In(x), cuda.Out(y))
    assert y[31] == 31 and x[0] == 0


@feature("`__cuda_array_interface__`, `as_cuda_array`")
def interface():
    x = cuda.to_device(numbers())

    class Other:
        __cuda_array_interface__ = x.__cuda_array_interface__

    cuda.as_cuda_array(Other())[0] = 5
    assert x[0] == 5 and cuda.is_cuda_array(x)


@feature("streams")
def streams():
    stream = cuda.stream()
    with stream.auto_synchronize():
        x = cuda.to_device(numbers(), stream=stream)
    statuses = []
    stream.add_callback(lambda *args: statuses.append(args[2]), "told")
    stream.synchronize()
    assert statuses == ["told"] and x.copy_to_host(stream=cuda.default_stream())[1] == 1


@feature("events")
def events():
    start, end = cuda.event(), cuda.event()
    start.record()
    end.record()
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0 and start.query()


@feature("`cuda.synchronize`, `close`, `defer_cleanup`, `profile_start`")
def nothing_to_do():
    cuda.synchronize()
    with cuda.defer_cleanup():
        cuda.profile_start()
    cuda.close()


@feature("devices and contexts")
def devices():
    assert cuda.is_available() and len(cuda.gpus) == 1 and cuda.detect()
    assert cuda.get_current_device().compute_capability == (9, 0)
    with cuda.gpus[0]:
        assert cuda.current_context().get_memory_info().free > 0
    cuda.current_context().deallocations.clear()
    cuda.select_device(0)


@feature("`cuda.reduce`")
def reduce():
    total = cuda.reduce(lambda a, b: a + b)
    assert total(numbers()) == 496 and total(cuda.to_device(numbers()), init=4) == 500


@feature("`@vectorize(target='cuda')`")
def vectorize():
    import numba

    @numba.vectorize(["float32(float32, float32)"], target="cuda")
    def add(a, b):
        return a + b

    assert add(numbers(), 1).dtype == np.float32
    assert add(cuda.to_device(numbers()), numbers()).copy_to_host()[4] == 8


# Inside a kernel.
@feature("`grid`, `gridsize`, `threadIdx`, `blockIdx`, `blockDim`, `gridDim`, `laneid`, `warpsize`")
def positions():
    def k(x):
        i, j = cuda.grid(2)
        assert cuda.gridsize(2) == (8, 8) and cuda.warpsize == 32 and cuda.gridDim.y == 2
        x[i, j] = cuda.laneid + cuda.blockIdx.x * cuda.blockDim.x

    assert launched(k, np.zeros((8, 8)), grid=(2, 2), block=(4, 4))[4, 0] == 4


@feature("static shared memory")
def shared():
    def k(x):
        s, t = cuda.shared.array((LIMIT, 8), float32), cuda.threadIdx.x
        s[t // 8, t % 8] = x[t]
        cuda.syncthreads()
        x[t] = s[(31 - t) // 8, (31 - t) % 8]

    assert launched(k, numbers())[0] == 31


@feature("dynamic shared memory")
def dynamic():
    def k(x):
        s = cuda.shared.array(0, float32)
        s[cuda.threadIdx.x] = 1
        x[cuda.threadIdx.x] = s.size

    assert launched(k, numbers(), sharedmem=256)[0] == 64


@feature("local and constant arrays, with an alignment or without")
def local():
    table = np.arange(4.0)

    def k(x):
        a, c = cuda.local.array(4, float64, alignment=16), cuda.const.array_like(table)
        for n in range(4):
            a[n] = c[n]
        x[cuda.threadIdx.x] = a[3]

    assert launched(k, numbers())[0] == 3


@feature("structured dtypes, records, nested arrays")
def structures():
    kind = np.dtype([("a", np.int32), ("b", np.float32, (3,))])

    def k(p, record):
        p[0].a, p[1]["b"][2] = 7, record.b[0]

    p, record = np.zeros(2, kind), np.zeros(1, kind)
    record["b"] = 4
    launched(k, p, record[0], block=1)
    assert p[0]["a"] == 7 and p[1]["b"][2] == 4


@feature("complex numbers, booleans, tuples, dates as arguments")
def kinds():
    def k(z, flags, pair, dates):
        i = cuda.threadIdx.x
        z[i] = z[i] * 1j
        flags[i] = pair[0][i] > pair[1]
        dates[i] = dates[i] + np.timedelta64(1, "D")

    z, flags = np.ones(32, np.complex64), np.zeros(32, bool)
    dates = np.full(32, np.datetime64("2026-01-31"))
    launched(k, z, flags, (numbers(), 30.0), dates)
    assert z[0] == 1j and flags.sum() == 1 and str(dates[0]) == "2026-02-01"


@feature("slices, `reshape`, `view`, negative indices, ufuncs of whole arrays")
def views():
    def k(x, y):
        x[2:4] = x[-1]
        y.reshape((4, 8))[1, 0] = y.view(np.int32).size
        np.sqrt(x, x)

    x, y = np.full(32, 4, np.float32), numbers()
    launched(k, x, y, block=1)
    assert (x == 2).all() and y[8] == 32


@feature("atomics")
def atomics():
    def k(x):
        for name in "add sub max min".split():
            getattr(cuda.atomic, name)(x, 0, 1)
        cuda.atomic.and_(x, 1, 6), cuda.atomic.or_(x, 2, 8), cuda.atomic.xor(x, 3, 1)
        cuda.atomic.inc(x, 4, 100), cuda.atomic.dec(x, 5, 100), cuda.atomic.exch(x, 6, 9)
        cuda.atomic.cas(x, 7, 7, 70), cuda.atomic.compare_and_swap(x[8:], 8, 80)

    x = launched(k, numbers(32, np.int32))
    assert list(x[1:9]) == [0, 10, 3, 36, 74, 9, 70, 80]


@feature("`atomic.nanmax`, `nanmin`")
def nan_atomics():
    def k(x):
        cuda.atomic.nanmax(x, 0, cuda.threadIdx.x), cuda.atomic.nanmin(x, 1, -1)

    assert list(launched(k, np.full(2, np.nan))) == [31, -1]


@feature("`syncthreads`, `_count`, `_and`, `_or`, `syncwarp`, `threadfence`")
def barriers():
    def k(x):
        t = cuda.threadIdx.x
        x[t] = cuda.syncthreads_count(t < 5) + cuda.syncthreads_or(t) + cuda.syncthreads_and(t)
        cuda.syncwarp()
        cuda.threadfence(), cuda.threadfence_block(), cuda.threadfence_system()

    assert launched(k, numbers())[0] == 6


@feature("warp shuffles, votes, `match_any_sync`, `match_all_sync`, `activemask`, `lanemask_lt`")
def warps():
    def k(x):
        t, full = cuda.threadIdx.x, 0xFFFFFFFF
        x[t] = cuda.shfl_down_sync(full, t, 1) + cuda.shfl_xor_sync(full, t, 1)
        x[t] += cuda.shfl_up_sync(full, t, 1) + cuda.shfl_sync(full, t, 0)
        assert cuda.ballot_sync(full, t < 3) == 7 and cuda.any_sync(full, t)
        assert not cuda.all_sync(full, t) and not cuda.eq_sync(full, t)
        assert cuda.match_any_sync(full, t) == 1 << t
        assert cuda.match_all_sync(full, 1)[1] and cuda.activemask() == full
        assert cuda.lanemask_lt() == (1 << t) - 1

    assert launched(k, numbers())[8] == 9 + 9 + 7


@feature("cooperative groups: `cg.this_grid().sync()`, any number of blocks")
def grid_sync():
    @cuda.jit
    def k(x, y):
        i = cuda.grid(1)
        x[i] = i
        cuda.cg.this_grid().sync()
        y[i] = x[x.size - 1 - i]

    x, y = numbers(64), numbers(64)
    k[2, 32](x, y)
    assert y[0] == 63 and k.max_cooperative_grid_blocks(32) > 2


@feature("`popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt`, `selp`, `nanosleep`")
def bits():
    def k(x):
        n = int32(12)
        x[0], x[1], x[2] = cuda.popc(n), cuda.clz(n), cuda.ffs(n)
        x[3], x[4] = cuda.brev(n) >> 28, cuda.selp(True, 1, 2)
        x[5], x[6] = cuda.fma(2.0, 3.0, 4.0), cuda.cbrt(27.0)
        cuda.nanosleep(10)

    assert list(np.round(launched(k, np.zeros(7), block=1))) == [2, 28, 3, 3, 1, 10, 3]


@feature("`math`, `libdevice`")
def mathematics():
    def k(x):
        x[0] = math.sqrt(x[1]) + cuda.libdevice.sqrtf(float32(4.0)) + math.erf(0.0)

    import importlib

    importlib.import_module(f"{package}.libdevice")
    assert launched(k, numbers(2), block=1)[0] == 3


@feature("`cuda.fp16`")
def fp16():
    import importlib

    with contextlib.suppress(ImportError):
        importlib.import_module(f"{package}.fp16")

    def k(x):
        x[0] = cuda.fp16.hfma(x[1], x[1], x[2])

    assert launched(k, numbers(3, np.float16), block=1)[0] == 3


@feature("`bfloat16`, where ml_dtypes is installed")
def bfloat16():
    def k(x):
        x[0] = float32(cuda.bfloat16(x[1]) + cuda.bfloat16(1.0))

    try:
        launched(k, np.full(2, 256, np.float32), block=1)
    except NotImplementedError as error:
        assert "ml_dtypes" in str(error)


@feature("vector types, `float32x4` and the like")
def vectors():
    def k(x):
        v = cuda.float32x4(1, 2, cuda.float32x2(3, 4))
        x[0] = v.x + v.w

    assert launched(k, numbers(1), block=1)[0] == 5


@feature("random states, `xoroshiro128p_*`")
def random():
    import importlib

    states = importlib.import_module(f"{package}.random")
    uniform = states.xoroshiro128p_uniform_float32

    def k(x, s):
        x[cuda.grid(1)] = uniform(s, cuda.grid(1))

    s = states.create_xoroshiro128p_states(32, seed=1)
    assert 0 < launched(k, numbers(), s).std() < 1


@feature("cache hints, `ldcg`, `stwt` and the like")
def hints_to_caches():
    def k(x):
        cuda.stwt(x, 0, cuda.ldcg(x, 3))

    assert launched(k, numbers(), block=1)[0] == 3


@feature("`print`, exceptions, `assert`, `debug=True`")
def debugging():
    @cuda.jit(debug=True, opt=False)
    def k(x):
        print("thread", cuda.threadIdx.x)
        if x[0] == 0:
            raise ValueError("zero")

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            k[1, 1](numbers())
        except ValueError as error:
            assert str(error) == "tid=[0, 0, 0] ctaid=[0, 0, 0]: zero"
    assert output.getvalue() == "thread 0\n"


# Refused.
@feature("`cuda.jit(link=…)`")
def link():
    cuda.jit(lambda x: None, link=["code.ptx"])


@feature("`declare_device` functions, called")
def declared():
    code = cuda.declare_device("twice", "int32(int32)")

    def k(x):
        x[0] = code(x[0])

    launched(k, numbers(1), block=1)


@feature("`external_stream`")
def external_stream():
    cuda.external_stream(1)


@feature("`open_ipc_array`")
def ipc():
    with cuda.open_ipc_array(b"", 1, np.float32):
        pass


@feature("`set_memory_manager`")
def memory_manager():
    cuda.set_memory_manager(object)


@feature("`@guvectorize(target='cuda')`")
def guvectorize():
    cuda.guvectorize(["void(float32[:], float32[:])"], "(n)->(n)")(lambda x, y: None)


@feature("`inspect_asm`, `inspect_sass` and the like")
def inspection():
    cuda.jit(lambda x: None).inspect_asm()


@feature("groups other than the grid, `cg.this_thread_block`")
def groups():
    def k(x):
        cuda.cg.this_thread_block().sync()

    launched(k, numbers())


@feature("arithmetic of whole vectors")
def vector_arithmetic():
    def k(x):
        x[0] = (cuda.float32x2(1, 2) + cuda.float32x2(1, 2)).x

    launched(k, numbers(1), block=1)


@feature("clusters of blocks")
def clusters():
    @cuda.jit
    def k(x):
        x[0] = 1

    k[2, 32, 0, 0, 2](numbers())


def main():
    met = {}
    for name, check in FEATURES.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                check()
            met[name] = None
        except Exception as error:
            met[name] = [type(error).__name__, str(error) or repr(error.__cause__)]
    print(json.dumps(met))


if __name__ == "__main__":
    main()
