"""A library function, a rung or a peer as something that can be checked and timed."""

import contextlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from unittest import mock

import torch

from rwkv_lessons.operations import LADDERS, OF_LADDER, OPERATIONS
from rwkv_lessons.operations.entries import BLOCKS, BOTH, NUMBA, TRITON, loaded
from rwkv_lessons.records.fingerprint import source_of
from rwkv_lessons.runtime.launch_numba import as_array, stream
from rwkv_lessons.runtime.packages import TRITON as TRITON_IS_THERE


@dataclass(frozen=True)
class Method:
    """`prepare(*inputs)` returns `run`; `run()` launches and returns o, or o and others."""

    name: str
    prepare: Callable
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    sources: tuple[str, ...] = ()  # see records/fingerprint.py; a peer has none
    note: str | None = None
    facts: Callable = lambda run: {}  # run → registers, local_bytes, shared_bytes, block
    precise: bool = True  # float32 inputs have to give a float32 answer


def library(name):
    """The library's methods of an operation, by name, as far as they can be imported here."""
    operation = OPERATIONS[name]
    if operation.one_token:
        return one_token(operation.package)
    if operation.functions:
        functions = {method: loaded(function) for method, function in operation.functions.items()}
    else:
        package = import_module(f"rwkv_lessons.{operation.package}")
        functions = package.METHODS | {operation.package: getattr(package, operation.package)}
    names = [method for method in functions if method not in operation.skipped]
    return {method: _library_method(operation, method, functions[method]) for method in names}


def ladder(name):
    """The rungs of a ladder and the library's finished kernel, by name, from the bottom up."""
    operation, rungs = OF_LADDER[name], []
    for rung in LADDERS[name].rungs:
        rungs.append(rung_method(operation, rung))
        if rung.swept:
            rungs += [_numba_rung(operation, rung, block) for block in BLOCKS]
    finished, ladder = library(operation.name), LADDERS[name]
    ends = [ladder.finished, *([ladder.beside[1]] if ladder.beside else [])]
    return {m.name: m for m in rungs} | {name: finished[name] for name in ends if name in finished}


def one_token(name):
    """What the package of this name has for one token of each of B sequences, by name.

    The last input is the state, `[B, H, N, N]`, which a run may write over. Timed by the clock is
    one eager call, or one replay of a CUDA graph of one step.
    """
    package = import_module(f"rwkv_lessons.{name}")
    whole, in_place = getattr(package, name), getattr(package, f"{name}_step")

    def step(*inputs):
        *token, s0 = inputs
        state = s0.clone()
        return lambda: (in_place(*token, state), state)

    def replayed_step(*inputs):
        *token, s0 = inputs
        state, graph = s0.clone(), torch.cuda.CUDAGraph()
        in_place(*token, state)  # compiles
        with torch.cuda.graph(graph):
            o = in_place(*token, state)
        state.copy_(s0)

        def run():
            graph.replay()
            return o, state

        return run

    def another_state(*inputs):
        return lambda: whole(*inputs)

    variants = (
        (f"{name}_step", in_place, step, "in place"),
        (f"{name}_step, graph", in_place, replayed_step, "in place, replay of a CUDA graph"),
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
        for method, function, prepare, note in variants
    }


def _library_method(operation, name, f):
    def prepare(*inputs):
        if operation.timed == BOTH:
            return with_gradients(f, inputs, operation.like)
        return lambda: f(*inputs)

    original = inspect.unwrap(f)
    module = inspect.getmodule(original)
    facts = lambda run: {}  # noqa: E731
    if TRITON_IS_THERE and (name == operation.package or hasattr(module, "triton")):
        facts = launched_by_triton
    elif hasattr(module, "launch"):  # of numba's kernels
        facts = partial(launched, module)
    return Method(name, prepare, sources=(source_of(original),), facts=facts)


def with_gradients(f, inputs, like=2):
    """A function that returns f's o and the gradients of all inputs.

    Args:
        f: (*inputs) → o, or a tuple that starts with it.
        inputs: tensors. do is one of them, reversed in time.
        like: which: it has o's shape, `[B, T, …]`.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]
    do = inputs[like].flip(1)

    def run():
        with torch.enable_grad():
            o = first(f(*leaves))
            return o.detach(), *torch.autograd.grad(o, leaves, do)

    return run


def first(result):
    """o of a function that returns o, or a tuple that starts with it."""
    return result[0] if isinstance(result, tuple) else result


def rung_method(operation, rung):
    """`rung` on torch tensors: its kernel, or the gradients and the forward pass before them."""
    if rung.after or rung.both_passes:
        return _gradient_rung(operation, rung)
    return (_function_rung if rung.function else _numba_rung)(operation, rung)


def _numba_rung(operation, rung, *block):
    """The float32 decay and numba's views are made once, outside `run`."""
    module, resources_used = rung.load(), {}
    kernel = getattr(module, rung.kernel)

    def prepare(*inputs):
        shape = inputs[operation.like].shape
        _needs_head_size(rung, kernel, shape[-1])
        grid, resources_used["block"] = getattr(module, rung.launch)(*shape, *block)
        tensors, results = loaded(operation.rung_arguments)(*inputs)
        arrays = [as_array(x) for x in (*tensors, *results)]
        launch, o = kernel[grid, resources_used["block"], stream()], results[0]

        def run():
            if rung.zeroed:
                o.zero_()
            launch(*arrays)
            return o

        return run

    return Method(
        rung.method + "".join(f"[{threads}]" for threads in block),
        prepare,
        dtypes=("float32",),
        sources=(source_of(kernel), f"{rung.file}::{rung.kernel}", f"{rung.file}::{rung.launch}"),
        note="time includes zeroing the output" if rung.zeroed else None,
        facts=lambda run: resources_used | resources(kernel),
    )


def _function_rung(operation, rung):
    """A function of the lesson, of what its kernel reads: it allocates what the kernel writes."""

    def prepare(*inputs):
        forward = rung.load_function()
        tensors, _ = loaded(operation.rung_arguments)(*inputs)
        return lambda: first(forward(*tensors))

    return Method(
        rung.method,
        prepare,
        dtypes=rung.dtypes,
        sources=(rung.source, *rung.made_of),
        facts=launched_by_triton,
    )


def _gradient_rung(operation, rung):
    """`gradients` of `rung`, after a forward rung or with one in it; results as `with_gradients`.

    The lesson's function takes what a rung reads, do, and gradients of the states afterwards, which
    are zeros as those before are; it returns gradients of the inputs, and of the states before.
    """
    forward = rung_method(operation, rung.after) if rung.after else None
    module, facts = rung.load(), {NUMBA: resources, TRITON: compiled}[rung.tool]

    def prepare(*inputs):
        do = inputs[operation.like].flip(1).contiguous()
        tensors, results = loaded(operation.rung_arguments)(*inputs)
        run_forward = forward.prepare(*inputs) if forward else None
        states = len(results) - 1  # beside o
        zeros = tensors[len(tensors) - states :]

        def run():
            o = [run_forward()] if forward else []
            gradients = getattr(module, rung.function)(*tensors, do, *zeros)
            return *o, *gradients[: len(gradients) - states]

        return run

    return Method(
        rung.method,
        prepare,
        dtypes=rung.dtypes,
        sources=(*(forward.sources if forward else ()), rung.source),
        note="registers of the backward sweep",
        facts=lambda run: facts(getattr(module, rung.kernel)),
    )


def _needs_head_size(rung, kernel, N):
    """A rung may be compiled for one head size, the constant N of its module."""
    compiled = kernel.py_func.__globals__.get("N", N)
    if compiled != N:
        raise ValueError(f"head size is {N}, {rung.file} is written for {compiled}")


def resources(kernel):
    """Registers, local and shared bytes of a numba kernel, compiled by a launch."""
    forms = kernel.overloads.values()  # one per combination of argument types
    return {
        "registers": max(form.regs_per_thread for form in forms),
        "local_bytes": max(form.local_mem_per_thread for form in forms),
        "shared_bytes": max(form.shared_mem_per_block for form in forms),
    }


def compiled(kernel):
    """Registers, local and shared bytes and threads of a Triton kernel, compiled by a launch."""
    forms = [form for cache in kernel.device_caches.values() for form in cache[0].values()]
    return {
        "registers": max(form.n_regs for form in forms),
        "local_bytes": max(4 * form.n_spills for form in forms),
        "shared_bytes": max(form.metadata.shared for form in forms),
        "block": max(32 * form.metadata.num_warps for form in forms),
    }


def launched(module, run):
    """The same of the first kernel that `run` hands to `launch.launch` from `module`."""
    original, facts = module.launch, {}

    def spy(kernel, grid, block, *args):
        attributes = kernel.attributes
        for name, value in (
            ("registers", attributes.num_regs),
            ("local_bytes", attributes.local_size_bytes),
            ("shared_bytes", attributes.shared_size_bytes),
        ):  # methods in cuda.core 0, properties in 1
            facts.setdefault(name, value() if callable(value) else value)
        facts.setdefault("block", block if isinstance(block, int) else math.prod(block))
        original(kernel, grid, block, *args)

    module.launch = spy
    try:
        run()
    finally:
        module.launch = original
    return facts


def launched_by_triton(run):
    """The same of the first Triton kernel that `run` launches, however it does it; {} if none."""
    from triton.compiler import CompiledKernel

    from rwkv_lessons.runtime import remembered_launches, replay

    original, kernels = CompiledKernel.run, []  # a launch that nobody remembers asks for it

    def spy(kernel):
        kernels.append(kernel)
        return original.fget(kernel)

    with contextlib.ExitStack() as stack:
        for launches in (remembered_launches.machine_code, replay._known):
            stack.enter_context(mock.patch.dict(launches, clear=True))
        stack.enter_context(mock.patch.object(CompiledKernel, "run", property(spy)))
        run()
    return _of_triton(kernels[0]) if kernels else {}


def _of_triton(kernel):
    return {
        "registers": kernel.n_regs,
        "local_bytes": 4 * kernel.n_spills,
        "shared_bytes": kernel.metadata.shared,
        "block": 32 * kernel.metadata.num_warps,
    }
