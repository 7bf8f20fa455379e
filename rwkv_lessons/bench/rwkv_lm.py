"""RWKV-LM's CUDA kernels for RWKV-7, built from a checkout: RWKV_LM=<folder> … wkv7 --peers.

They are what its training calls `RWKV7_CLAMPW_CUDA`: bfloat16, heads of 64, whole chunks of 16
tokens, w before the clamp. Each of its files that computes the same is a peer of its own.
"""

import os
import tempfile
from functools import cache, partial
from pathlib import Path

import torch

from rwkv_lessons.bench.methods import with_gradients
from rwkv_lessons.bench.serving_operators import DECAY, before_clamp

CHECKOUT = "RWKV_LM"  # an environment variable: the folder of a checkout
FOLDER = "RWKV-v7/train_temp/cuda"
BINDING = "rwkv7_clampw_v3"  # its C++ file's name, and that of the library which this registers
N, CHUNK = 64, 16
FLAGS = (f"-D_N_={N}", f"-D_CHUNK_LEN_={CHUNK}", "--use_fast_math", "-O3", "-Xptxas", "-O3",
         "--extra-device-vectorization")  # fmt: skip


@cache
def built(kernel):
    """The operators of a file of kernels, compiled by nvcc: half a minute.

    Two files cannot register one library, so each has its own.
    """
    from torch.utils.cpp_extension import load

    folder = Path(os.environ[CHECKOUT]) / FOLDER
    library = f"lessons_{kernel}"
    binding = Path(tempfile.mkdtemp()) / f"{library}.cpp"
    text = (folder / f"{BINDING}.cpp").read_text(encoding="utf-8")
    binding.write_text(text.replace(BINDING, library), encoding="utf-8")
    sources = [str(folder / f"{kernel}.cu"), str(binding)]
    load(library, sources, is_python_module=False, extra_cuda_cflags=list(FLAGS))
    return getattr(torch.ops, library)


class BuiltClampW(torch.autograd.Function):
    """o of r, w, k, v, a and b by the kernels built; w before the clamp."""

    @staticmethod
    def forward(ctx, kernel, *inputs):
        B, T, H, _ = inputs[0].shape
        o = torch.empty_like(inputs[3])
        states = o.new_empty(B, H, T // CHUNK, N, N, dtype=torch.float32)
        read = o.new_empty(o.shape, dtype=torch.float32)
        built(kernel).forward(*inputs, o, states, read)
        ctx.kernel = kernel
        ctx.save_for_backward(*inputs, states, read)
        return o

    @staticmethod
    def backward(ctx, do):
        *inputs, states, read = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in inputs]
        built(ctx.kernel).backward(*inputs, do.contiguous(), states, read, *gradients)
        return None, *gradients


def inputs_of(r, w, *others):
    """w is what its clamp makes the log decay of, as far as bfloat16 holds it."""
    if r.dtype != torch.bfloat16 or r.shape[-1] != N or r.shape[1] % CHUNK:
        raise ValueError(f"takes bfloat16, heads of {N} and whole chunks of {CHUNK} tokens only")
    return r, before_clamp(w).to(w.dtype), *others[:4]


def clampw(kernel, *inputs):
    x = inputs_of(*inputs)
    built(kernel)
    return lambda: BuiltClampW.apply(kernel, *x)


def clampw_gradients(kernel, *inputs):
    """Its dw is of w before the clamp; that of the log decay is computed from it, in place."""
    x = inputs_of(*inputs)
    built(kernel)
    run = with_gradients(partial(BuiltClampW.apply, kernel), x, like=3)
    rate = x[1].float().sigmoid()
    slope = (-DECAY * rate * (1 - rate)).to(x[1].dtype)

    def of_log_decay():
        o, dr, dw, *others = run()
        return o, dr, dw.div_(slope), *others

    return of_log_decay
