"""One token for each of B sequences, the state read and written: as generation repeats it.

The wall-clock time is that of one eager call, or of one replay of a CUDA graph of one step.
"""

import torch

from rwkv_lessons import wkv6, wkv7
from rwkv_lessons.bench.methods import Method, launched_by_triton


def sources(operation):
    """The code behind one token of "wkv6" or "wkv7", as `fingerprint` asks."""
    names = f"step.py::{operation}_step", f"__init__.py::{operation}"
    return tuple(f"rwkv_lessons/{operation}/{name}" for name in names)


def wkv6_methods():
    """What the library has for one token of WKV-6, by name."""
    return _methods("wkv6", wkv6.wkv6, wkv6.wkv6_step)


def wkv7_methods():
    """What the library has for one token of WKV-7, by name."""
    return _methods("wkv7", wkv7.wkv7, wkv7.wkv7_step)


def _methods(operation, whole, one_token):
    """The ways by name. The last input is the state, `[B, H, N, N]`, which a run may write over."""

    def step(*inputs):
        *token, s0 = inputs
        state = s0.clone()
        return lambda: (one_token(*token, state), state)

    def replayed_step(*inputs):
        *token, s0 = inputs
        state, graph = s0.clone(), torch.cuda.CUDAGraph()
        one_token(*token, state)  # compiles
        with torch.cuda.graph(graph):
            o = one_token(*token, state)
        state.copy_(s0)

        def run():
            graph.replay()
            return o, state

        return run

    def another_state(*inputs):
        return lambda: whole(*inputs)

    ways = {
        f"{operation}_step": (step, "in place"),
        f"{operation}_step, graph": (replayed_step, "in place, replay of a CUDA graph"),
        operation: (another_state, "another state"),
    }
    shared = {"sources": sources(operation), "facts": lambda run: launched_by_triton(None, run)}
    return {
        name: Method(name, prepare, note=note, **shared) for name, (prepare, note) in ways.items()
    }
