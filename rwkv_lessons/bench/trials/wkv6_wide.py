"""RWKV-6 for heads of 128, a head a program: both passes compiled, checked, timed on a GPU.

    python -m rwkv_lessons.bench wkv6-wide            all of it; two minutes on a Hopper GPU
    python -m rwkv_lessons.bench wkv6-wide --quick    compiles, and checks, but times nothing

It compares each pass with float64 at lengths around a chunk, at decays from none to total and with
each option, and calls it ten times to see whether the bits stay the same. What passes is timed
beside the kernels in use, in the same process.
"""

import math
from functools import partial

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.bench.show import console
from rwkv_lessons.bench.trials.variants import machine_code_of, repeated, try_all
from rwkv_lessons.inputs import rwkv6_inputs
from rwkv_lessons.operations.wkv6 import least_wkv6
from rwkv_lessons.wkv6 import wkv6_doubling

VARIANTS = {"forward": "forward", "with states kept": "kept", "gradients": "gradients"}
LIMIT = 3e-3  # three roundings to bfloat16: of a result, of a state and of scores
SHAPES = ((4, 4096, 32), (8, 4096, 32), (1, 4096, 32))  # B, T, H of heads of 128
COPY = 4.3e9  # bytes a millisecond of a plain copy on an H200


def command(options):
    """`python -m rwkv_lessons.bench wkv6-wide`."""
    try_all(options, VARIANTS, SHAPES, LIMIT, compiled_as, errors, time_shape)


def compiled_as(variant):
    """What a pass is compiled to, for Hopper, in a sentence; its machine code is looked at."""
    x = [torch.empty(4, 4096, 32, 128, dtype=torch.bfloat16) for _ in range(4)]
    states, weights = torch.empty(512, 32, 128, 128, dtype=torch.bfloat16), torch.empty(32, 128)
    return machine_code_of(partial(run, variant, *x, weights, None, states=states, do=x[0]))


def run(variant, *inputs, states=None, do=None, ds1=None, **options):
    """o and s1; with the states kept; or the gradients."""
    from rwkv_lessons.wkv6.chunked.hopper import wide, wide_sweep

    if variant != "gradients":
        return wide.wkv6_wide(*inputs, keep=variant == "kept", **options)
    return wide_sweep.wide_gradients(*inputs[:5], states, do, ds1, **options)


def in_use(variant, *inputs, states=None, do=None, ds1=None, cu_seqlens=None, scale=1.0, **raw):
    """The same of the library's kernels."""
    from rwkv_lessons.wkv6.chunked import backward, forward

    options = cu_seqlens, scale, *(raw.values() or (False,))
    if variant != "gradients":
        return forward.forward(*inputs, *options, variant == "kept")
    return backward.gradients(*inputs, cu_seqlens, states, do, ds1, *options[1:])


def errors(variant, device):
    """(what is looked at, the largest error of a result) of each case; NaN if the bits change."""
    for name, (x, options) in cases(device).items():
        more = {}
        if variant == "gradients":
            more = {"states": in_use("kept", *x, **options)[2], "do": torch.randn_like(x[2])}
            more["ds1"] = torch.randn_like(x[5])
        results, fault = repeated(name, partial(run, variant, *x, **more, **options))
        if fault:
            yield fault
            continue
        want = in_float64(x, options, more.get("do"), more.get("ds1"))
        if variant == "kept":
            want = (*want, in_use("kept", *x, **options)[2].double())
        yield name, max(relative_error(a, b) for a, b in zip(results, want, strict=True))


def in_float64(x, options, do=None, ds1=None):
    """o and s1; or the gradients of r, k, v, w, u and s0, if do and ds1 are given."""
    leaves = [y.double().requires_grad_(do is not None) for y in x]
    results = wkv6_doubling(*leaves, **options)
    if do is None:
        return results
    return torch.autograd.grad(results, leaves, [do.double(), ds1.double()])


def cases(device):
    """{name: (r, k, v, w, u and s0, options)}."""
    make = partial(inputs, device=device)
    ends = torch.tensor([0, 1, 1, 70, 262, 262, 512], dtype=torch.int32, device=device)
    by_name = {f"{T} tokens": (make(T), {}) for T in (1, 31, 32, 33, 63, 64, 65, 1000)}
    by_name |= {f"w = {w}": (make(200, w), {}) for w in (0.0, -0.5, -1.08, -3.0, -8.0, -20.0)}
    by_name["strong among mild"] = make(700, -0.02), {}
    w = by_name["strong among mild"][0][3]
    w[:, 70:80, :, ::3], w[:, 300:, 1, 100], w[:, 330:, 2, 7] = -math.inf, -4.0, -2.0
    by_name["a scale"] = make(200), {"scale": 0.3}
    by_name["packed"] = make(512, sequences=6, B=1), {"cu_seqlens": ends}
    by_name["raw"] = make(200, 0.3), {"raw_decay": True}
    by_name["raw, strong"] = make(200, 2.0), {"raw_decay": True}
    by_name["in segments"] = make(2100, -0.3, B=1, H=2), {}
    by_name["many heads"] = make(300, -0.2, B=4, H=70), {}
    return by_name


def inputs(T, w=None, B=2, H=3, sequences=None, device="cpu"):
    """Normal numbers as r, k, v and w in bfloat16, u, and s0. w is the same everywhere if given."""
    generator = torch.Generator().manual_seed(T)
    r, k, v, x = torch.randn(4, B, T, H, 128, generator=generator)
    w = -(3 * x - 2).exp() if w is None else torch.full_like(x, w)
    u = torch.randn(H, 128, generator=generator)
    s0 = torch.randn(sequences or B, H, 128, 128, generator=generator)
    tokens = (r, k / 128**0.5, v, w)
    return [*(y.bfloat16().to(device) for y in tokens), u.to(device), s0.to(device)]


@torch.no_grad()
def time_shape(shape, device, wrong):
    """Prints two lines for each pass that is not wrong, with mild and with strong decays."""
    B, T, H = shape
    r, k, v, mild, u, *_ = rwkv6_inputs(*shape, 128, dtype=torch.bfloat16, device=device)
    floor = least_wkv6(B, T, H, 128, 2).bytes / COPY
    console().print(f"B={B} T={T} H={H} N=128, forward {floor:.3f} ms at a copy's rate")
    for decays, w in (("mild", mild), ("w = -5", torch.full_like(mild, -5.0))):
        x = r, k, v, w, u, None
        more = {"states": in_use("kept", *x)[2], "do": torch.randn_like(v)}
        for name, variant in VARIANTS.items():
            if name not in wrong:
                now, then = (
                    timing.device_times(partial(f, variant, *x, **more), device)
                    for f in (run, in_use)
                )
                line = f"  {name}, {decays}: {now.median_ms:.3f} ms, in use {then.median_ms:.3f}"
                console().print(line)
