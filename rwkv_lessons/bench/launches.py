"""What the library launches on a GPU that is not there: recorded from its own host code.

The host code of every operation runs on tensors without memory, with a GPU pretended. Nothing is
compiled or launched: of each kernel it is written down what Triton, or numba, would compile.
"""

import contextlib
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget

from rwkv_lessons.mla.decode import forward as decode
from rwkv_lessons.mla.prefill import prefill
from rwkv_lessons.runtime import compile_triton, devices, launch_tiles, launch_triton
from rwkv_lessons.runtime.architectures import number_of
from rwkv_lessons.timex.cuda import backward as timex_cuda_dw
from rwkv_lessons.timex.cuda import forward as timex_cuda
from rwkv_lessons.timex.toeplitz import backward as toeplitz_dw
from rwkv_lessons.timex.toeplitz import forward as toeplitz
from rwkv_lessons.wkv5 import cuda as wkv5_cuda
from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.cuda import backward as cuda_backward
from rwkv_lessons.wkv6.cuda import forward as cuda
from rwkv_lessons.wkv6.recurrent import backward as recurrent_backward
from rwkv_lessons.wkv6.recurrent import forward as recurrent
from rwkv_lessons.wkv7 import backstepping as backstepping7
from rwkv_lessons.wkv7.chunked import backward as chunked7_backward
from rwkv_lessons.wkv7.chunked import forward as chunked7
from rwkv_lessons.wkv7.recurrent import backward as recurrent7_backward
from rwkv_lessons.wkv7.recurrent import forward as recurrent7

SIZES = (16, 64, 100, 128, 256)  # of a head; the kernels pad 100 to 128
DELTA_RULE_SIZES = (64, 256)  # of WKV-7: those of 128 are between the two in all respects
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEW, MANY = (1, 4096, 2), (8, 4096, 64)  # B, T, H: in segments, and enough to fill any GPU


class Nothing(dict):
    """A cache that never has what is asked for, or a set that has everything."""

    def get(self, key, default=None):
        return None

    def __contains__(self, key):
        return True

    def add(self, key):
        pass


class Driver:
    """As much of Triton's driver as choosing the machine code takes."""

    def __init__(self, architecture):
        self.target = GPUTarget("cuda", number_of(architecture), 32)

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target


@contextlib.contextmanager
def recorded(architecture):
    """A list that fills with what is launched meanwhile, as if on a GPU of this architecture."""
    found, driver = [], Driver(architecture)

    def in_triton(kernel, key, signature, device, constants, options, attributes, warmup):
        found.append((kernel, signature, constants, options, attributes))

    def run(kernel, *given, grid, warmup, **options):
        return real_run(kernel, *given, grid=grid, warmup=True, **options)

    def in_numba(kernel, signature, threads, capability):
        found.append((kernel, signature, threads, capability))

    real_run = triton.JITFunction.run
    active = triton.runtime.driver._active
    triton.runtime.driver.set_active(driver)
    patches = [
        mock.patch.object(triton.JITFunction, "_do_compile", in_triton),
        mock.patch.object(triton.JITFunction, "run", run),
        mock.patch.object(devices, "gpu_of", lambda device: devices.gpu_like(architecture)),
        mock.patch.object(torch.cuda, "current_device", lambda: None),
        mock.patch.object(compile_triton, "_compiled", Nothing()),
        mock.patch.object(launch_triton, "_compiled", Nothing()),
        mock.patch.object(launch_tiles, "_compiled", Nothing()),
    ]
    for module in (wkv5_cuda, cuda, cuda_backward, timex_cuda, timex_cuda_dw):
        name = "compiled_kernels" if module is cuda_backward else "compiled_kernel"
        patches += [
            mock.patch.object(module, "compiled", in_numba),
            mock.patch.object(module, "launch", lambda *_: None),
            mock.patch.object(module, name, getattr(module, name).__wrapped__),
        ]
    try:
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield found
    finally:
        triton.runtime.driver._active = active


def new(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def time_mixing(B, T, H, N, dtype, w_dtype=None):
    """r, k, v, w, u of a WKV-6 call."""
    r, k, w = (new(B, T, H, N, dtype=x) for x in (dtype, dtype, w_dtype or dtype))
    return r, k, new(B, T, H, N, dtype=dtype), w, new(H, N, dtype=dtype)


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for dtype in DTYPES:
        kind = str(dtype).removeprefix("torch.")
        for N in SIZES:
            if N <= chunked.largest(dtype, gpu):
                yield from chunked_calls(f"{N} {kind}", N, dtype)
        if dtype != torch.float16:  # kernels without products take it as bfloat16
            for N in SIZES:
                yield from recurrent_calls(f"{N} {kind}", N, dtype)
            for N in (64, 1024):
                yield from numba_calls(f"{N} {kind}", N, dtype)
        for N in DELTA_RULE_SIZES[: 1 if dtype == torch.float16 else None]:
            if N <= chunked7.largest(gpu):
                yield from delta_rule_calls(f"{N} {kind}", N, dtype)
            if dtype != torch.float16:
                yield from delta_rule_token_calls(f"{N} {kind}", N, dtype)
        yield from timex_calls(kind, dtype)
        yield from mla_calls(kind, dtype)


def chunked_calls(name, N, dtype):
    """The longest code: float32 decays to be made of a parameter, in segments; and the shortest."""

    def train():
        x = time_mixing(*FEW, N, dtype, torch.float32)
        o, s1, kept = chunked.forward(*x, None, None, 1.0, True, True)
        chunked_backward.gradients(*x, None, None, kept, o, s1, 1.0, True)

    yield f"wkv6 chunked {name} raw segments training", train

    def packed():
        ends = new(9, dtype=torch.int64)
        chunked.run_forward(*time_mixing(1, *MANY[1:], N, dtype), None, ends, 1.0, False)

    yield f"wkv6 chunked {name} packed", packed
    if N == 64:

        def many():
            x = time_mixing(*MANY, N, dtype)
            o, s1, kept = chunked.forward(*x, None, None, 1.0, False, True)
            chunked_backward.gradients(*x, None, None, kept, o, None, 1.0, False)

        yield f"wkv6 chunked {name} training", many


def recurrent_calls(name, N, dtype):
    def few_tokens():
        x = time_mixing(*FEW[:1], 40, FEW[2], N, dtype)
        o, s1, kept = recurrent.forward(*x, None, None, 1.0, True, True)
        recurrent_backward.gradients(*x, None, None, kept, o, s1, 1.0, True)

    yield f"wkv6 recurrent {name} training", few_tokens

    def step():
        recurrent.run_forward(*time_mixing(MANY[0], 1, MANY[2], N, dtype), None, None, 1.0, False)

    yield f"wkv6 recurrent {name} one token", step


def numba_calls(name, N, dtype):
    def in_numba():
        for B, T, H in (FEW, MANY):
            x = time_mixing(B, T, H, N, dtype)
            o, s1 = cuda.forward(*x, None)
            cuda_backward.gradients(*x, None, o, s1)

    yield f"wkv6 cuda {name}", in_numba

    def wkv5():
        for B, T, H in (FEW, MANY):
            r, k, v, _, u = time_mixing(B, T, H, N, dtype)
            wkv5_cuda.forward(r, k, v, u, u, None)

    yield f"wkv5 cuda {name}", wkv5


def delta_rule(B, T, H, N, dtype):
    """r, w, k, v, a, b of a WKV-7 call."""
    return [new(B, T, H, N, dtype=dtype) for _ in range(6)]


def delta_rule_calls(name, N, dtype):
    """As `chunked_calls`, of WKV-7."""

    def training(sizes):
        x = delta_rule(*sizes, N, dtype)
        o, s1, *kept = chunked7.forward(*x, None, None, 1.0, "raw", True)
        chunked7_backward.gradients(*x, None, None, *kept, o, s1, 1.0, "raw")

    yield f"wkv7 chunked {name} raw training", lambda: training(FEW)
    yield f"wkv7 chunked {name} raw training, many heads", lambda: training(MANY)


def delta_rule_token_calls(name, N, dtype):
    def few_tokens():
        x = delta_rule(*FEW[:1], 40, FEW[2], N, dtype)
        o, s1, *kept = recurrent7.forward(*x, None, None, 1.0, "raw", True)
        recurrent7_backward.gradients(*x, None, None, *kept, o, s1, 1.0, "raw")

    yield f"wkv7 recurrent {name} training", few_tokens

    def stepping_back():
        x = delta_rule(*FEW, N, dtype)
        o, s1, *kept = backstepping7.forward(*x, None, None, 1.0, "clamp", True)
        backstepping7.gradients(*x, None, None, *kept, o, s1, 1.0, "clamp")

    yield f"wkv7 backstepping {name} training", stepping_back

    def step():
        x, s = delta_rule(MANY[0], 1, MANY[2], N, dtype), new(MANY[0], MANY[2], N, N)
        recurrent7.run_forward(*x, s, None, 1.0, "log", s1=s)

    yield f"wkv7 recurrent {name} one token", step


def timex_calls(kind, dtype):
    """Most batch rows of a block, rows that are aligned and not; and one row."""
    w = {T: new(768, T, dtype=dtype) for T in (768, 333)}

    def in_numba():
        for B in (32, 1):
            k = new(B, 768, 768, dtype=dtype)
            timex_cuda.convolve(w[768], k, 0.0, False)
            timex_cuda.convolve(w[768], k, 0.0, True)
            timex_cuda_dw.correlate(k, k)

    def in_triton():
        for B, T in ((64, 768), (1, 333)):
            k = new(B, 768, T, dtype=dtype)
            toeplitz.convolve(w[T], k, 0.0, False)
            toeplitz.convolve(w[T], k, 0.0, True)
            toeplitz_dw.correlate(k, k)

    yield f"timex cuda {kind}", in_numba
    yield f"timex toeplitz {kind}", in_triton


def mla_calls(kind, dtype):
    for R, P, V in ((256, 32, 64), (512, 64, 128)):  # MiniCPM3's and DeepSeek's
        if R <= decode.LARGEST_RANK[dtype]:
            yield f"mla decode R={R} {kind}, 16 heads", lambda s=(R, P, V): step(16, *s, dtype)
            paged = f"mla decode R={R} {kind}, 40 heads, pages"
            yield paged, lambda s=(R, P, V): step(40, *s, dtype, page=64)
            if R == 512:  # a tile of tokens may be on several of these
                yield f"{paged} of 16", lambda s=(R, P, V): step(40, *s, dtype, page=16)
        if R > prefill.LARGEST_RANK[dtype]:
            continue
        for ragged in (False, True):
            call = f"mla prefill R={R} {kind} absorbed{', ragged' * ragged}"
            yield call, lambda s=(R, P, V), r=ragged: absorbed(*s, dtype, r)
    for K, P in ((64, 32), (128, 64), (192, 64), (256, 64)):
        training = K <= prefill.LARGEST_HEAD_WITH_GRADIENTS
        call = f"mla prefill {K} {kind}{' training' * training}"
        yield call, lambda s=(K, P), t=training: expanded(*s, dtype, t)


def step(H, R, P, V, dtype, page=None):
    B, N = 16, 4096
    cache = (B * N // page, page) if page else (B, N)
    table = new(B, N // page, dtype=torch.int32) if page else None
    q, q_rope = new(B, 1, H, R, dtype=dtype), new(B, 1, H, P, dtype=dtype)
    latent, k_rope = new(*cache, R, dtype=dtype), new(*cache, P, dtype=dtype)
    lengths, w_v = new(B, dtype=torch.int32), new(H, V, R, dtype=dtype)
    decode.forward(q, q_rope, latent, k_rope, w_v, 1.0, lengths, None, table)


def absorbed(R, P, V, dtype, ragged):
    B, M, N, H = 2, 64, 4096, 16
    lengths = new(B, dtype=torch.int32) if ragged else None
    q, q_rope = new(B, M, H, R, dtype=dtype), new(B, M, H, P, dtype=dtype)
    latent, k_rope = new(B, N, R, dtype=dtype), new(B, N, P, dtype=dtype)
    w_v = new(H, V, R, dtype=dtype)
    prefill.forward(q, q_rope, latent, k_rope, None, w_v, 1.0, lengths, None, True)


def expanded(K, P, dtype, training):
    B, M, H = 2, 4096, 16
    q, q_rope = new(B, M, H, K, dtype=dtype), new(B, M, H, P, dtype=dtype)
    k, v = new(B, H, M, K, dtype=dtype), new(B, H, M, K, dtype=dtype)
    given = q, q_rope, k, new(B, M, P, dtype=dtype), v
    which = 1.0, new(B, dtype=torch.int32), None
    o, lse = prefill.attend_expanded(*given, *which)
    if training:
        prefill.gradients(*given, o, lse, o, lse, *which)
