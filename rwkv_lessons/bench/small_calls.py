"""Small calls of every kernel, with all gradients, for tools that slow a program down:

    calls="python -m rwkv_lessons.bench.small_calls"
    compute-sanitizer --tool memcheck --report-api-errors no $calls
    compute-sanitizer --tool racecheck $calls 'mla*' --part 1/2

Run it without the tool first: kernels are compiled much faster then. Nothing is compared with
float64 here; `python -m rwkv_lessons.verify` does that.
"""

import argparse
import fnmatch
import sys
from functools import partial

import torch
from torch.nn.functional import normalize

from rwkv_lessons.interop.fla_kda import chunk_kda
from rwkv_lessons.mla import fp8_cache, fp8_cache_parts, mla, mla_decode
from rwkv_lessons.runtime.command_line import run
from rwkv_lessons.timex import timex
from rwkv_lessons.wkv5 import wkv5
from rwkv_lessons.wkv6 import wkv6
from rwkv_lessons.wkv7 import wkv7

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DEEPSEEK, MINICPM = {"R": 512, "P": 64, "V": 128}, {"R": 256, "P": 32, "V": 64}
PACKED = (0, 70, 70, 300)  # where packed sequences of 300 tokens begin, and the end; one is empty
LISTED = 130  # tokens of a list


def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normal(*shape, dtype=BF16, learn=False):
    return torch.randn(shape, device=device()).to(dtype).requires_grad_(learn)


def log_decays(*shape, dtype, strong, learn):
    """Of a median of exp(-0.05), or of exp(-4.5) if they are strong."""
    x = torch.randn(shape, device=device()) / 2 + (1.5 if strong else -3)
    return (-torch.exp(x)).to(dtype).requires_grad_(learn)


def backward(*results):
    """Gradients of the sum of all results."""
    sum(x.float().sum() for x in results).backward()


def rwkv5():
    tokens = [normal(1, 70, 2, 64, dtype=FP32, learn=True) for _ in range(3)]
    w = -torch.rand(2, 64, device=device())
    backward(*wkv5(*tokens, w, normal(2, 64, dtype=FP32)))


def rwkv6(T, H, N, dtype, *, strong=False, learn=True, packed=False, **options):
    shape, ends = (1, T, H, N), torch.tensor(PACKED, device=device()) if packed else None
    r, k, v = (normal(*shape, dtype=dtype, learn=learn) for _ in range(3))
    w = log_decays(*shape, dtype=dtype, strong=strong, learn=learn)
    u = normal(H, N, dtype=dtype, learn=learn)
    results = wkv6(r, k, v, w, u, cu_seqlens=ends, **options)
    if learn:
        backward(*results)


def rwkv7(T, H, N, dtype=BF16, *, strong=False, learn=True, packed=False, decay="log", **options):
    shape, ends = (1, T, H, N), torch.tensor(PACKED, device=device()) if packed else None
    r, k, v = (normal(*shape, dtype=dtype, learn=learn) for _ in range(3))
    w = log_decays(*shape, dtype=dtype, strong=strong, learn=learn)
    if decay != "log":
        w = normal(*shape, dtype=dtype, learn=learn)
    direction = normalize(normal(*shape, dtype=FP32), dim=-1)
    a = direction.to(dtype).requires_grad_(learn)
    b = (-direction * torch.rand_like(direction)).to(dtype).requires_grad_(learn)
    results = wkv7(r, w, k, v, a, b, cu_seqlens=ends, decay=decay, **options)
    if learn:
        backward(*results)


def kda(T, H, learn):
    q, k, v = (normal(1, T, H, 128, learn=learn) for _ in range(3))
    g = (-torch.rand(1, T, H, 128, device=device())).requires_grad_(learn)
    beta = torch.rand(1, T, H, device=device()).to(BF16).requires_grad_(learn)
    o, _ = chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    if learn:
        backward(o)


def step(B, N, H, *, R, P, V, M=1, dtype=BF16, page=None, fp8=False, lists=False):
    """M tokens of each of B sequences, which have N."""
    latent, k_rope = normal(B, N, R + P, dtype=dtype).split([R, P], 2)
    q, q_rope, w_v = (normal(*x, dtype=dtype) for x in ((B, M, H, R), (B, M, H, P), (H, V, R)))
    which = {"scale": 0.05}
    if fp8:
        latent, which["scales"], k_rope = fp8_cache_parts(fp8_cache(latent, k_rope), P)
    if lists:
        order = [torch.randperm(N, device=device())[:LISTED] for _ in range(B)]
        which["tokens"] = torch.stack(order).int()
    if page:
        latent, k_rope = (x.reshape(-1, page, x.shape[2]) for x in (latent, k_rope))
        if fp8:
            which["scales"] = which["scales"].reshape(len(latent), page, -1)
        which["block_table"] = torch.randperm(len(latent), device=device()).view(B, -1).int()
        which["lengths"] = torch.full((B,), N - 3, dtype=torch.int32, device=device())
    mla_decode(q, q_rope, latent, k_rope, None, w_v, **which)


def prompt(T, H, K, *, R, P, V):
    shapes = (1, T, H, K), (1, T, H, P), (1, T, R), (1, T, P), (H, K, R), (H, V, R)
    backward(mla(*(normal(*x, learn=True) for x in shapes), scale=0.05)[0])


def convolution():
    w, k = normal(8, 10, dtype=FP32, learn=True), normal(4, 8, 10, dtype=FP32, learn=True)
    backward(timex(w, k))


CALLS = {
    "wkv5": rwkv5,
    "wkv6": partial(rwkv6, 200, 2, 64, BF16),
    "wkv6 strong": partial(rwkv6, 200, 2, 64, BF16, strong=True),
    "wkv6 packed": partial(rwkv6, 300, 2, 64, BF16, packed=True),
    "wkv6 raw": partial(rwkv6, 130, 2, 64, BF16, raw_decay=True),
    "wkv6 segments": partial(rwkv6, 4096, 2, 64, BF16),
    "wkv6 float16": partial(rwkv6, 200, 2, 64, FP16),
    "wkv6 float16 strong": partial(rwkv6, 200, 2, 64, FP16, strong=True),
    "wkv6 float16 forward": partial(rwkv6, 200, 2, 64, FP16, learn=False),
    "wkv6 float16 packed": partial(rwkv6, 300, 2, 64, FP16, packed=True, scale=0.5),
    "wkv6 float16 segments": partial(rwkv6, 4096, 2, 64, FP16),
    "wkv6 128": partial(rwkv6, 200, 2, 128, BF16),
    "wkv6 128 strong": partial(rwkv6, 130, 2, 128, BF16, strong=True),
    "wkv6 128 float16": partial(rwkv6, 130, 2, 128, FP16),
    "wkv6 256": partial(rwkv6, 70, 1, 256, BF16),
    "wkv6 float32": partial(rwkv6, 130, 2, 64, FP32),
    "wkv6 128 float32": partial(rwkv6, 70, 1, 128, FP32),
    "wkv6 token": partial(rwkv6, 1, 2, 64, BF16, learn=False),
    "wkv7 fused": partial(rwkv7, 200, 64, 64),
    "wkv7 fused strong": partial(rwkv7, 130, 64, 64, strong=True),
    "wkv7 fused clamp": partial(rwkv7, 128, 64, 64, decay="clamp"),
    "wkv7 fused raw": partial(rwkv7, 128, 64, 64, decay="raw"),
    "wkv7 fused packed": partial(rwkv7, 300, 64, 64, packed=True, scale=0.5),
    "wkv7 fused forward": partial(rwkv7, 200, 64, 64, learn=False),
    "wkv7 fused segments": partial(rwkv7, 1024, 12, 64),
    "wkv7 fused segments forward": partial(rwkv7, 1024, 4, 64, learn=False),
    "wkv7 fused segments, identity beside": partial(rwkv7, 1024, 20, 64),
    "wkv7 fused 128": partial(rwkv7, 130, 64, 128),
    "wkv7 fused 128 strong": partial(rwkv7, 128, 64, 128, strong=True),
    "wkv7 fused 128 clamp": partial(rwkv7, 128, 64, 128, decay="clamp"),
    "wkv7 fused 128 forward": partial(rwkv7, 130, 64, 128, learn=False),
    "wkv7 chunked": partial(rwkv7, 130, 2, 64, FP32),
    "wkv7 chunked strong": partial(rwkv7, 70, 2, 64, FP16, strong=True),
    "wkv7 chunked 128": partial(rwkv7, 130, 2, 128),
    "wkv7 chunked 128 segments": partial(rwkv7, 2048, 2, 128),
    "wkv7 chunked 256": partial(rwkv7, 70, 1, 256),
    "wkv7 token": partial(rwkv7, 1, 2, 64, learn=False),
    "kda": partial(kda, 130, 64, True),
    "kda forward": partial(kda, 130, 64, False),
    "kda few": partial(kda, 130, 2, True),
    "mla": partial(step, 2, 700, 128, **DEEPSEEK),
    "mla float16": partial(step, 1, 321, 64, M=2, dtype=FP16, **DEEPSEEK),
    "mla pages": partial(step, 2, 640, 128, page=64, **DEEPSEEK),
    "mla small pages": partial(step, 1, 320, 128, page=16, **DEEPSEEK),
    "mla 16 heads": partial(step, 2, 500, 16, **DEEPSEEK),
    "mla lists": partial(step, 2, 500, 16, lists=True, **DEEPSEEK),
    "mla fp8": partial(step, 2, 500, 16, fp8=True, **DEEPSEEK),
    "mla fp8 lists": partial(step, 2, 500, 16, fp8=True, lists=True, **DEEPSEEK),
    "mla fp8 pages": partial(step, 2, 512, 16, fp8=True, page=64, **DEEPSEEK),
    "mla rank 256": partial(step, 3, 500, 40, **MINICPM),
    "mla rank 256 pages": partial(step, 3, 512, 40, page=64, **MINICPM),
    "mla float32": partial(step, 1, 100, 4, R=64, P=16, V=32, dtype=FP32),
    "mla prompt": partial(prompt, 130, 4, 64, **MINICPM),
    "mla prompt rank 512": partial(prompt, 70, 2, 128, **DEEPSEEK),
    "timex": convolution,
}


def part(text):
    """ "2/3" as (2, 3): the second of three parts."""
    try:
        k, n = map(int, text.split("/"))
    except ValueError:
        k, n = 0, 0
    if not 1 <= k <= n:
        raise argparse.ArgumentTypeError(f"must be like 1/2, the first of two parts; got {text!r}")
    return k, n


def chosen(patterns, k=1, n=1):
    """The calls that match a pattern, and of those every n-th, from the k-th on."""
    unknown = [x for x in patterns if not fnmatch.filter(CALLS, x)]
    if unknown:
        raise ValueError(f"no call is named {unknown[0]!r}; there are {', '.join(CALLS)}")
    names = [x for x in CALLS if not patterns or any(fnmatch.fnmatchcase(x, p) for p in patterns)]
    return names[k - 1 :: n]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.bench.small_calls", description="Small calls of every kernel."
    )
    parser.add_argument("names", nargs="*", help="only these calls; 'wkv6*' is several")
    parser.add_argument("--part", type=part, default=(1, 1), help="such as 1/2, the first of two")
    options = parser.parse_args(arguments)
    try:
        names = chosen(options.names, *options.part)
    except ValueError as error:
        parser.error(str(error))
    for name in names:
        print(name, flush=True)  # before the call: what a tool reports next is this one's
        torch.manual_seed(0)
        CALLS[name]()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(run(main, "small_calls"))
