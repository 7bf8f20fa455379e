"""One token for each of B sequences, the state read and written: as generation repeats it.

The wall-clock time is that of one eager call, or of one replay of a CUDA graph of one step.
"""

import inspect
from importlib import import_module

import torch

from rwkv_lessons.bench.methods import Method, launched_by_triton
from rwkv_lessons.records.fingerprint import source_of


def methods(name):
    """What the package of this name has for one token, by name.

    The last input is the state, `[B, H, N, N]`, which a run may write over.
    """
    package = import_module(f"rwkv_lessons.{name}")
    whole, one_token = getattr(package, name), getattr(package, f"{name}_step")

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

    ways = (
        (f"{name}_step", one_token, step, "in place"),
        (f"{name}_step, graph", one_token, replayed_step, "in place, replay of a CUDA graph"),
        (name, whole, another_state, "another state"),
    )
    return {
        method: Method(
            method,
            prepare,
            sources=(source_of(inspect.unwrap(function)),),
            note=note,
            facts=launched_by_triton,
        )
        for method, function, prepare, note in ways
    }
