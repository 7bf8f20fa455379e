"""One token of WKV-7 for each of B sequences, the state read and written: as generation repeats it.

The wall-clock time is that of one eager call, or of one replay of a CUDA graph of one step.
"""

import torch

from rwkv_lessons import wkv7
from rwkv_lessons.bench.methods import Method, launched_by_triton

SOURCES = tuple(f"rwkv_lessons/wkv7/{x}" for x in ("step.py::wkv7_step", "__init__.py::wkv7"))


def library():
    """What the library has for one token, by name."""
    ways = {
        "wkv7_step": (step, "in place"),
        "wkv7_step, graph": (replayed_step, "in place, replay of a CUDA graph"),
        "wkv7": (another_state, "another state"),
    }
    shared = {"sources": SOURCES, "facts": lambda run: launched_by_triton(None, run)}
    return {
        name: Method(name, prepare, note=note, **shared) for name, (prepare, note) in ways.items()
    }


def step(*inputs):
    *token, s0 = inputs
    state = s0.clone()
    return lambda: (wkv7.wkv7_step(*token, state), state)


def replayed_step(*inputs):
    *token, s0 = inputs
    state, graph = s0.clone(), torch.cuda.CUDAGraph()
    wkv7.wkv7_step(*token, state)  # compiles
    with torch.cuda.graph(graph):
        o = wkv7.wkv7_step(*token, state)
    state.copy_(s0)

    def run():
        graph.replay()
        return o, state

    return run


def another_state(*inputs):
    return lambda: wkv7.wkv7(*inputs)
