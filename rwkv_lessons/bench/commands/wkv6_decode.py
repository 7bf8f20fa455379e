"""One token of WKV-6 for each of B texts, the state read and written: what generation repeats.

`host ms` is the time of one eager call, or of one replay of a CUDA graph that holds one step.
"""

import torch

from rwkv_lessons import inputs, wkv6
from rwkv_lessons.bench.methods import Method, launched_by_triton

SOURCES = tuple(f"rwkv_lessons/wkv6/{x}" for x in ("step.py::wkv6_step", "__init__.py::wkv6"))


def make_inputs(shape, dtype, device):
    """r, k, v, w, u of one token, and the state [B, H, N, N] that a text of 64 tokens left."""
    B, _, H, N = shape
    made = inputs.rwkv6_inputs(B, 65, H, N, dtype=getattr(torch, dtype), device=device)
    *tokens, u = made
    before, last = (
        [x[:, part].contiguous() for x in tokens] for part in (slice(64), slice(64, 65))
    )
    _, s0 = wkv6.wkv6(*before, u)
    return *last, u, s0


def in_float64(given):
    """o and s1 of the reference, on the same numbers."""
    return wkv6.wkv6_reference(*(x.double() for x in given))


def library():
    """What the library has for one token, by name."""
    ways = {
        "wkv6_step": (step, "in place"),
        "wkv6_step, graph": (replayed_step, "in place, replay of a CUDA graph"),
        "wkv6": (another_state, "another state"),
    }
    shared = {"sources": SOURCES, "facts": lambda run: launched_by_triton(None, run)}
    return {
        name: Method(name, prepare, note=note, **shared) for name, (prepare, note) in ways.items()
    }


def step(r, k, v, w, u, s0):
    state = s0.clone()
    return lambda: (wkv6.wkv6_step(r, k, v, w, u, state), state)


def replayed_step(r, k, v, w, u, s0):
    state, graph = s0.clone(), torch.cuda.CUDAGraph()
    wkv6.wkv6_step(r, k, v, w, u, state)  # compiles
    with torch.cuda.graph(graph):
        o = wkv6.wkv6_step(r, k, v, w, u, state)
    state.copy_(s0)

    def run():
        graph.replay()
        return o, state

    return run


def another_state(r, k, v, w, u, s0):
    return lambda: wkv6.wkv6(r, k, v, w, u, s0)
