"""One token of WKV-6 for each of B sequences, the state read and written: as generation repeats it.

The wall-clock time is that of one eager call, or of one replay of a CUDA graph of one step.
"""

import torch

from rwkv_lessons import wkv6
from rwkv_lessons.bench.methods import Method, launched_by_triton

SOURCES = tuple(f"rwkv_lessons/wkv6/{x}" for x in ("step.py::wkv6_step", "__init__.py::wkv6"))


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
