"""Host code on a GPU: what is written, odd tensors, CUDA graphs, determinism, threads."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from support.wkv6_cases import make as make6
from support.wkv7_cases import make as make7
from torch.autograd import forward_ad

pytest.importorskip("triton")
from rwkv_lessons.mla import mla  # noqa: E402
from rwkv_lessons.sequences import arguments  # noqa: E402
from rwkv_lessons.timex import METHODS as TIMEX  # noqa: E402
from rwkv_lessons.wkv5 import wkv5  # noqa: E402
from rwkv_lessons.wkv6 import METHODS as WKV6  # noqa: E402
from rwkv_lessons.wkv6 import wkv6, wkv6_step  # noqa: E402
from rwkv_lessons.wkv7 import METHODS as WKV7  # noqa: E402
from rwkv_lessons.wkv7 import wkv7, wkv7_step  # noqa: E402

pytestmark = pytest.mark.gpu
STEPS = {"wkv6": (wkv6_step, make6), "wkv7": (wkv7_step, make7)}


def inputs(make, T=128, dtype=torch.bfloat16, device="cuda"):
    return make(2, T, 2, 64, 64, w=-0.5, dtype=dtype, device=device)


class Wrapped(torch.Tensor):
    """A tensor that only torch's dispatcher can open."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, device=inside.device
        )

    def __init__(self, inside):
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), named=None):
        opened = [x.inside if isinstance(x, Wrapped) else x for x in given]
        return function(*opened, **(named or {}))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_a_gradient_through_a_state_that_a_step_overwrote_is_an_error(name, compiled):
    step, make = STEPS[name]
    *x, state = inputs(make, T=1, dtype=torch.float32)
    weight = torch.ones(1, device="cuda", requires_grad=True)
    loss = (weight * state).sum()  # autograd keeps the state
    with torch.no_grad():
        (torch.compile(step) if compiled else step)(*x, state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("T", [1, 9, 128])
@pytest.mark.parametrize("n", [0, 2, 4])
@pytest.mark.parametrize("f, make", [(wkv6, make6), (wkv7, make7)])
def test_a_view_with_another_sign_has_that_sign(f, make, n, T):
    x = inputs(make, T, torch.float32)
    x[n] = torch._neg_view(x[n])
    with torch.no_grad():
        got, want = f(*x), f(*(y.resolve_neg() for y in x))
    for a, b in zip(got, want, strict=True):  # the same kernels on the same numbers
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("T", [9, 128])
@pytest.mark.parametrize("f, make", [(wkv6, make6), (wkv7, make7)])
def test_a_wrapped_argument_is_opened_whichever_it_is(f, make, T):
    x = inputs(make, T)
    with torch.no_grad():
        want = f(*x)
        for n in range(len(x)):
            got = f(*x[:n], Wrapped(x[n]), *x[n + 1 :])
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("T", [9, 128])
@pytest.mark.parametrize("f, make", [(wkv6, make6), (wkv7, make7)])
def test_tangents_of_forward_mode_are_an_error_and_not_lost(f, make, T):
    for n, x in enumerate(inputs(make, T, torch.float32)):
        with forward_ad.dual_level():
            given = inputs(make, T, torch.float32)
            given[n] = forward_ad.make_dual(x, torch.ones_like(x))
            with pytest.raises(RuntimeError, match="no forward-mode gradients"):
                f(*given)


GRAPHS = """
import sys
import torch
from rwkv_lessons.wkv6 import wkv6
torch.manual_seed(0)
x = [torch.randn(2, 256, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
w0 = torch.rand(2, 256, 2, 64, device="cuda", dtype=torch.bfloat16)
u0 = torch.randn(2, 64, device="cuda", dtype=torch.bfloat16)

def train(f):
    w, u = w0.clone().requires_grad_(), u0.clone().requires_grad_()
    losses = []
    for _ in range(20):
        torch.compiler.cudagraph_mark_step_begin()
        loss = f(w, u)
        loss.backward()
        losses.append(loss.detach().clone())
        with torch.no_grad():
            for p in (w, u):
                p -= 0.01 * p.grad
                p.grad = None
        noise = [torch.randn(1 << 18, device="cuda") for _ in range(8)]  # other memory is used
    return torch.stack(losses), w.detach(), u.detach()

def model(w, u):
    o, s1 = wkv6(*x, -w.abs(), u)
    return o.float().square().mean() + s1.square().mean()

got = train(torch.compile(model, mode="reduce-overhead"))  # no backward pass in eager before
want = train(model)
for a, b in zip(got, want):
    # bfloat16 parameters, and what Inductor fuses is rounded once where eager rounds twice
    torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=2e-2)
from rwkv_lessons.wkv6.chunked.hopper.sweep import make_weights_and_masks, weights_and_masks
device = torch.device("cuda", 0)
assert weights_and_masks(device).equal(make_weights_and_masks(device))
address = weights_and_masks(device).data_ptr()
pools = [s["segment_pool_id"] for s in torch.cuda.memory_snapshot()
         if s["address"] <= address < s["address"] + s["total_size"]]
assert [tuple(pool) for pool in pools] == [(0, 0)], pools
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_training_in_cuda_graphs_without_a_step_in_eager_first_is_as_in_eager():
    run(GRAPHS)


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(True, warn_only=True)  # as conftest.py has it


def differentiate(f, x, **options):
    leaves = [y.detach().requires_grad_() for y in x]
    results = f(*leaves, **options)
    results = results if isinstance(results, tuple) else (results,)
    torch.autograd.grad(results, leaves, [torch.ones_like(y) for y in results])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nothing_of_an_operation_is_refused_where_torch_is_deterministic(deterministic, dtype):
    x = inputs(make6, dtype=dtype)
    differentiate(wkv5, [*x[:3], x[3][0, 0], *x[4:]])
    for name, f in WKV6.items():
        if dtype != torch.float64 or name != "cuda":
            differentiate(f, x)
    for f in WKV7.values():
        differentiate(f, inputs(make7, dtype=dtype))
    w, k = torch.randn(4, 300, device="cuda", dtype=dtype), torch.randn(2, 4, 300, device="cuda")
    for name, f in TIMEX.items():
        if dtype != torch.float64 or name != "cuda":
            differentiate(f, (w, k.to(dtype)))
    sizes = (
        (2, 100, 4, 64),
        (2, 100, 4, 32),
        (2, 100, 128),
        (2, 100, 32),
        (4, 64, 128),
        (4, 64, 128),
    )
    q = [torch.randn(size, device="cuda", dtype=dtype) for size in sizes]
    differentiate(mla, q, scale=0.1)
    with torch.no_grad():
        mla(q[0][:, :1], q[1][:, :1], *q[2:], scale=0.1)


def test_tokens_before_the_end_of_cu_seqlens_are_right_where_it_ends_below_T():
    x = make6(1, 128, 2, 64, 64, dtype=torch.bfloat16, device="cuda")[:5]
    ends = torch.tensor([0, 40, 100], device="cuda")
    with torch.no_grad():
        o, s1 = wkv6(*x, cu_seqlens=ends)
        want, s = wkv6(*(y[:, :100] for y in x[:4]), x[4], cu_seqlens=ends)
    torch.testing.assert_close(o[:, :100], want, rtol=0, atol=0)
    torch.testing.assert_close(s1, s, rtol=0, atol=0)


@pytest.mark.parametrize("ends", [[0, 100], [0, 200], [1, 128], [0, 100, 50, 128]])
def test_on_request_the_numbers_of_cu_seqlens_are_looked_at(ends, monkeypatch):
    monkeypatch.setattr(arguments, "LOOKS_AT_CU_SEQLENS", True)
    ends = torch.tensor(ends, device="cuda")
    for f, make in ((wkv6, make6), (wkv7, make7)):
        x = make(1, 128, 2, 64, 64, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(ValueError, match="cu_seqlens must increase from 0 to T = 128"):
            f(*x[:-1], cu_seqlens=ends)


PACKED = """
import sys
import torch
from rwkv_lessons.wkv6 import wkv6
from rwkv_lessons.wkv7 import wkv7
T, end = 128, int(sys.argv[1])
x = [torch.randn(1, T, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
w, u = -torch.rand_like(x[0]), torch.randn(2, 64, device="cuda")
a = torch.nn.functional.normalize(torch.randn_like(x[0]), dim=-1)
ends = torch.tensor([0, 40, end], device="cuda")
try:
    wkv6(*x, w, u, cu_seqlens=ends)
    wkv7(x[0], w, *x[1:], -a, a, cu_seqlens=ends)
    torch.cuda.synchronize()
    print("launched")
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="needs compute-sanitizer")
@pytest.mark.parametrize("end, said", [(100, "launched"), (200, "must increase from 0 to T = 128")])
def test_no_address_outside_is_touched_where_cu_seqlens_ends_below_T_or_is_refused(end, said):
    tool = ["compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all"]
    command = [*tool, sys.executable, "-c", PACKED, str(end)]
    checks = {"RWKV_LESSONS_CHECK_CU_SEQLENS": "1"} if end > 128 else {}
    done = subprocess.run(command, env=os.environ | checks, capture_output=True, text=True)
    # torch asks the driver what it may not know; only an access of a kernel counts
    assert said in done.stdout and "Invalid __" not in done.stdout, done.stdout[-4000:]


THREADS = """
import threading
import torch
from rwkv_lessons.wkv6 import wkv6
x = [torch.randn(2, 256, 2, 64, dtype=torch.bfloat16) for _ in range(4)]
x[3] = -x[3].abs()
u, found, failed = torch.randn(2, 64), {}, []
together = threading.Barrier(2)

def work(n, device):
    try:
        with torch.cuda.device(device):
            given = [y.to(device).requires_grad_() for y in (*x, u)]
            together.wait()
            for _ in range(3):
                o, s1 = wkv6(*given)
                found[n] = [y.cpu() for y in (o, s1, *torch.autograd.grad(o, given, o))]
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work, args=(n, DEVICES[n])) for n in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
for a, b in zip(found[0], found[1]):
    assert a.equal(b)  # the same bits on GPUs of one kind
"""


def test_two_threads_make_their_first_calls_at_once_on_one_gpu(tmp_path):
    run(f"DEVICES = 'cuda:0', 'cuda:0'\n{THREADS}", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_threads_make_their_first_calls_at_once_on_two_gpus(tmp_path):
    run(f"DEVICES = 'cuda:0', 'cuda:1'\n{THREADS}", TRITON_CACHE_DIR=str(tmp_path))


def test_without_remembered_launches_results_are_the_same():
    code = """
import torch
from rwkv_lessons.runtime import remembered_launches, replay
from rwkv_lessons.wkv6 import wkv6
x = [torch.randn(2, 256, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
w, u = -torch.rand_like(x[0]), torch.randn(2, 64, device="cuda")
first = wkv6(*x, w, u)
assert all(a.equal(b) for _ in range(3) for a, b in zip(wkv6(*x, w, u), first))
assert not (remembered_launches.machine_code or replay._known)
"""
    run(code, RWKV_LESSONS_REMEMBER_LAUNCHES="0")


@pytest.mark.parametrize("keep", [False, True])
def test_the_chunked_operator_of_wkv7_is_a_good_one(keep):
    for dtype in (torch.float32, torch.bfloat16):
        given = (*inputs(make7, dtype=dtype), None, 1.0, "log", keep)
        operator = torch.ops.rwkv_lessons.wkv7_chunked_forward.default
        torch.library.opcheck(operator, given)
        results = operator(*given)
        assert len({id(y) for y in results}) == 4
