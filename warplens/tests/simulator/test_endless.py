"""What never ends is stopped: in each backend, in a helper of another cell, and soon."""

import itertools
import sys
import time

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier  # noqa: E402

from warplens import time_limit  # noqa: E402
from warplens.cuda import trace as cuda_simulator  # noqa: E402
from warplens.faults import EndlessLoop  # noqa: E402
from warplens.faults import place_of as place_in  # noqa: E402
from warplens.gluon import run as gluon_simulator  # noqa: E402
from warplens.programs.watch import watched  # noqa: E402
from warplens.steps import limited, place_of  # noqa: E402
from warplens.time_limit import TooLarge, uncounted  # noqa: E402
from warplens.triton import run as triton_simulator  # noqa: E402

# Of the processor, as the tests share it: a limit, the verdict after it, and the imports before.
SECONDS = time_limit.SECONDS + 4


@pytest.fixture(autouse=True)
def soon():
    """A test here takes at most `SECONDS`."""
    start = time.process_time()
    yield
    assert time.process_time() - start < SECONDS


@pytest.fixture
def hasty(monkeypatch):
    """A limit of a second, where the time is not what is tested."""
    monkeypatch.setattr(time_limit.time_limit, "__defaults__", (1, time_limit.BYTES))


def called(function, *arguments):
    with limited(function):
        return function(*arguments)


def in_another_cell(text, **names):
    """What a cell defines, which has a file of its own."""
    exec(compile(text, f"<cell {len(text)}>", "exec"), names)
    return names


def test_a_loop_in_a_helper_of_another_cell_is_told_with_its_line():
    cell = in_another_cell("def helper(n):\n    while n:\n        n += 1\n")

    def stuck(n):
        return cell["helper"](n)

    with pytest.raises(EndlessLoop, match="still looping after 100,000 lines") as caught:
        called(stuck, 1)
    assert caught.value.place.function == "helper"


def test_a_function_that_takes_more_and_more_memory_is_stopped():
    # It takes 4 GB in 5 s and then ends: its watcher may have to wait for a processor.
    text = "def hog(n):\n    kept = []\n    while len(kept) < n:\n"
    text += "        kept.append(ones(1 << 20))\n        sleep(0.005)\n"
    hog = in_another_cell(text, ones=torch.ones, sleep=time.sleep)["hog"]
    with pytest.raises(EndlessLoop, match="memory") as caught:
        called(hog, 1000)
    assert caught.value.place.function == "hog"


def test_what_comes_while_a_line_is_counted_is_told_with_that_line():
    def count(*_):
        raise TooLarge

    step = in_another_cell("def step(n):\n    n += 1\n    return n\n")["step"]
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: count if frame.f_code is step.__code__ else None)
    try:
        step(1)
    except TooLarge as error:
        place = place_of(error)
    finally:
        sys.settrace(before)
    assert (place.function, place.line) == ("step", 2)


def test_a_list_of_very_many_numbers_is_stopped_though_no_line_of_it_ends():
    def hog(n):
        return list(itertools.islice(itertools.count(n), 1 << 27))  # 5 GB

    with pytest.raises(EndlessLoop, match="memory"):
        called(hog, 1)


def test_a_function_that_catches_everything_that_is_an_error_is_stopped(hasty):
    def stubborn(n):
        while n:
            try:
                n += 1
            except Exception:
                pass

    with pytest.raises(EndlessLoop):
        called(stubborn, 1)


def test_what_a_check_does_by_itself_is_not_counted():
    def launches(n):
        with uncounted():
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
        return n

    with time_limit.time_limit(0.2):
        assert launches(1) == 1


KERNELS = {
    "count": "while i >= 0:\n        i += 1",
    "write": "while i >= 0:\n        y[i % 4] = i\n        i += 1",
    "a for loop": "for j in range(1 << 60):\n        y[0] = y[0] + j",
}


@pytest.mark.parametrize("loop", KERNELS)
def test_an_endless_kernel_of_numba_is_stopped_with_its_line(loop, hasty):
    text = f"def kernel(y):\n    i = 0\n    {KERNELS[loop]}\n"
    kernel = in_another_cell(text)["kernel"]
    (fault,) = cuda_simulator.trace(kernel, 1, 1, np.zeros(4, np.float32)).faults
    assert isinstance(fault, EndlessLoop) and fault.line in (3, 4, 5)


@triton.jit
def forever(x):
    while tl.load(x) == 0:
        tl.store(x, 0.0)


@triton.jit
def waits(x):
    tl.store(x + 1, 1.0)
    forever(x)


@triton.jit
def a_wide_tile(x, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    while tl.load(x) == 0:
        tl.store(x, tl.sum(tl.exp(tl.load(x + o, o < 8, 0.0))) * 0)


@triton.jit
def unrolled(x, N: tl.constexpr):
    for i in tl.static_range(N):
        tl.store(x, i)


@pytest.mark.parametrize(
    "kernel, sizes",
    [(waits, {}), (a_wide_tile, {"BLOCK": 1 << 18}), (unrolled, {"N": 1 << 60})],
)
def test_an_endless_kernel_of_triton_is_stopped(kernel, sizes, hasty):
    (fault,) = triton_simulator.trace(kernel, 1, torch.zeros(8), **sizes).faults
    assert isinstance(fault, EndlessLoop) and fault.line


@gluon.jit
def consume(tile, full):
    mbarrier.wait(full, 0)


@gluon.jit
def produce(tile, full):
    while True:
        gl.full([16], 0.0, gl.float32)


@gluon.jit
def an_endless_producer(x):
    tile = gl.allocate_shared_memory(gl.float32, [16, 16], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    gl.warp_specialize([(consume, (tile, full)), (produce, (tile, full))], [4], [64])


def test_an_endless_producer_is_stopped_with_its_line(hasty):
    (fault,) = gluon_simulator.trace(an_endless_producer, 1, torch.zeros(16)).faults
    assert isinstance(fault, EndlessLoop) and fault.place.function == "produce"


def test_a_second_exception_while_the_first_unwinds_does_not_hide_the_line():
    def unwinds():
        try:
            cell["loop"]()
        finally:
            raise time_limit.StillRunning

    def fails():
        raise time_limit.StillRunning

    cell = in_another_cell("def loop():\n    fails()\n", fails=fails)
    with pytest.raises(time_limit.StillRunning) as caught:
        unwinds()
    code = cell["loop"].__code__
    assert place_in(caught.value, lambda c: c is code).line == 2
    assert place_in(caught.value, lambda c: False) is None


def test_a_stop_that_a_callback_swallowed_is_raised_again():
    swallowed = []

    def stuck():
        while True:
            try:
                while True:
                    pass
            except time_limit.StillRunning:
                if swallowed:
                    raise
                swallowed.append(True)

    with pytest.raises(time_limit.StillRunning), time_limit.time_limit(0.2):
        stuck()
    with pytest.raises(time_limit.StillRunning), watched(0.2, lambda: False):
        swallowed.clear()
        stuck()
    assert swallowed
