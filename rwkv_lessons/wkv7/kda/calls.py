"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from .formulas import KDAForm
from .kernels import forward, gradients

B, T, H, K = 2, 8192, 64, 128
new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at: the same on all GPUs."""
    layer = {"norm": True, "gate": "softplus", "rate": 1}
    yield "kda 128 bfloat16", partial(training, torch.bfloat16, K, torch.float32)
    yield "kda 128 bfloat16, a layer's", partial(training, torch.bfloat16, K, **layer)
    yield "kda 128 bfloat16, one decay", partial(training, torch.bfloat16, 1, norm=True)
    yield "kda 128 float32", partial(training, torch.float32, K, norm=True)


def training(dtype, decays, of_g=None, **options):
    form = KDAForm(dtype, **options, learns=True)
    q, k, d = (new(B, T, H, K, dtype=dtype) for _ in range(3))
    g, beta = new(B, T, H, decays, dtype=of_g or dtype), new(B, T, H, dtype=dtype)
    A_log, dt_bias = (new(H), new(H, K)) if form.gate else (None, None)
    forward(q, k, g, beta, A_log, dt_bias, form._replace(learns=False))
    w = forward(q, k, g, beta, A_log, dt_bias, form)[1]
    d_g, of_gate = torch.empty_like(g), g if form.gate else None
    gradients(q, k, of_gate, beta, A_log, dt_bias, w, d, w, d, d, d, d_g, form)
