"""A library function, a rung or a peer as something that can be checked and timed."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch

from rwkv_lessons.ladders import BLOCKS, FINISHED, LADDERS
from rwkv_lessons.operations import BACKWARD, TRITON, untooled
from rwkv_lessons.records.fingerprint import source_of
from rwkv_lessons.runtime.launch_numba import as_array, stream


@dataclass(frozen=True)
class Method:
    """`prepare(r, k, v, w, u)` returns `run`; `run()` launches and returns o, or o and others."""

    name: str
    prepare: Callable
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    sources: tuple[str, ...] = ()  # see source.py; a peer has none
    note: str | None = None
    facts: Callable = lambda run: {}  # run → registers, local_bytes, shared_bytes, block
    precise: bool = True  # float32 inputs have to give a float32 answer


def library(operation):
    """The methods of rwkv_lessons.<operation>, by name; for <operation>-backward, both passes."""
    package = import_module(f"rwkv_lessons.{untooled(operation).removesuffix(BACKWARD)}")
    if operation.endswith(BACKWARD):  # the reference would keep every state
        found = {name: f for name, f in package.METHODS.items() if name != "reference"}
        return {name: _gradient_method(name, f) for name, f in found.items()}
    return {name: _library_method(name, f) for name, f in package.METHODS.items()}


def library_function(operation, name):
    package = import_module(f"rwkv_lessons.{untooled(operation).removesuffix(BACKWARD)}")
    return package.METHODS[name]


def reference(operation):
    """The library's reference: what every method is compared with, in float64."""
    return library_function(operation, "reference")


def recommended(operation):
    """The operation's own function, where it picks a method by a rule, as one more method."""
    name = operation.removesuffix(BACKWARD)
    package = import_module(f"rwkv_lessons.{name}")
    if not hasattr(package, "method_for"):
        return {}
    make = _gradient_method if operation.endswith(BACKWARD) else _library_method
    return {name: make(name, getattr(package, name))}


def ladder(operation):
    """The rungs of the lessons and the finished kernel, by name, from the bottom up."""
    methods = []
    for rung in LADDERS[operation]:
        backward = operation.endswith(BACKWARD)
        methods.append(_gradient_rung_method(rung) if backward else _forward_rung_method(rung))
        if rung.swept:
            methods += [_rung_method(rung, block) for block in BLOCKS]
    finished = FINISHED[operation]
    found = library(operation)
    return {m.name: m for m in methods} | {k: m for k, m in found.items() if k == finished}


def _library_method(name, f):
    def prepare(*inputs):
        return lambda: f(*inputs)

    module = inspect.getmodule(inspect.unwrap(f))
    in_triton = hasattr(module, "triton") or hasattr(module, "method_for")  # or any of them
    facts = launched_by_triton if in_triton else launched
    sources = (source_of(inspect.unwrap(f)),)
    return Method(name, prepare, sources=sources, facts=lambda run: facts(module, run))


def _gradient_method(name, f):
    def prepare(*inputs):
        return with_gradients(f, inputs)

    return dataclasses.replace(_library_method(name, f), prepare=prepare)


def with_gradients(f, inputs):
    """A function that returns o = f(…)[0] and the gradients of all inputs, for do = v backwards."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    do = inputs[2].flip(1)

    def run():
        with torch.enable_grad():
            o = f(*leaves)[0]
            return o.detach(), *torch.autograd.grad(o, leaves, do)

    return run


def _forward_rung_method(rung):
    return _triton_rung_method(rung) if TRITON in rung.operation else _rung_method(rung)


def _rung_method(rung, *block):
    """`rung` on torch tensors. The float32 decay and numba's views are made once, outside `run`."""
    module, used = rung.load(), {}
    kernel = getattr(module, rung.kernel)

    def prepare(r, k, v, w, u):
        _needs_head_size(rung, kernel, r.shape[-1])
        grid, used["block"] = module.launch(*r.shape, *block)
        o = torch.full_like(v, float("nan"))
        arrays = [as_array(x) for x in ARGUMENTS[rung.operation](r, k, v, w, u, o)]
        launch = kernel[grid, used["block"], stream()]

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
        sources=(source_of(kernel), f"{rung.file}::{rung.kernel}", f"{rung.file}::launch"),
        note="time includes zeroing the output" if rung.zeroed else None,
        facts=lambda run: used | resources(kernel),
    )


def _triton_rung_method(rung):
    """`forward(r, k, v, w, u, s0)` of the lesson: it allocates what the kernel writes."""
    module = rung.load()

    def prepare(r, k, v, w, u):
        B, _, H, N = r.shape
        w, u, s0 = w.float(), u.float(), torch.zeros(B, H, N, N, device=r.device)
        return lambda: module.forward(r, k, v, w, u, s0)[0]

    return Method(
        rung.method,
        prepare,
        dtypes=("float32",),
        sources=(f"{rung.file}::forward",),
        facts=lambda run: compiled(getattr(module, rung.kernel)),
    )


def _gradient_rung_method(rung):
    """A forward rung, and `gradients` of `rung` after it; results as `with_gradients`."""
    rungs = LADDERS[rung.operation.removesuffix(BACKWARD)]
    forward = next((x for x in rungs if x.stem == rung.after), rungs[-1])
    forward, module = _forward_rung_method(forward), rung.load()
    facts = compiled if TRITON in rung.operation else resources

    def prepare(r, k, v, w, u):
        first, do = forward.prepare(r, k, v, w, u), v.flip(1).contiguous()
        B, _, H, N = r.shape
        zeros = torch.zeros(B, H, N, N, device=r.device)

        def run():
            o = first()
            *found, _ = module.gradients(r, k, v, w.float(), u.float(), zeros, do, zeros)
            return o, *found

        return run

    return Method(
        rung.method,
        prepare,
        dtypes=("float32",),
        sources=(*forward.sources, f"{rung.file}::{rung.kernel}"),
        note="registers of the backward sweep",
        facts=lambda run: facts(module.backward_sweep),
    )


def _wkv5_arguments(r, k, v, w, u, o):
    return r, k, v, w.float().exp(), u.float(), o


def _wkv6_arguments(r, k, v, w, u, o):
    """States in and out are allocated here, zeros before the first token."""
    B, _, H, N = r.shape
    s0 = torch.zeros(B, H, N, N, device=r.device)
    return r, k, v, w.float(), u.float(), s0, o, torch.empty_like(s0)


ARGUMENTS = {"wkv5": _wkv5_arguments, "wkv6": _wkv6_arguments}  # of a rung


def _needs_head_size(rung, kernel, N):
    """A rung is compiled for one head size, the constant N of its module."""
    compiled = kernel.py_func.__globals__["N"]
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
    original, found = getattr(module, "launch", None), {}

    def spy(kernel, grid, block, *args):
        attributes = kernel.attributes
        for name, asked in (
            ("registers", attributes.num_regs),
            ("local_bytes", attributes.local_size_bytes),
            ("shared_bytes", attributes.shared_size_bytes),
        ):  # methods in cuda.core 0, properties in 1
            found.setdefault(name, asked() if callable(asked) else asked)
        found.setdefault("block", block if isinstance(block, int) else math.prod(block))
        original(kernel, grid, block, *args)

    if original is not None:
        module.launch = spy
        try:
            run()
        finally:
            module.launch = original
    return found


def launched_by_triton(module, run):
    """The same of the first Triton kernel that `run` launches, however it does it; {} if none."""
    from triton.compiler import CompiledKernel

    original, seen = CompiledKernel.run, []  # every launch asks for it

    def spy(kernel):
        seen.append(kernel)
        return original.fget(kernel)

    CompiledKernel.run = property(spy)
    try:
        run()
    finally:
        CompiledKernel.run = original
    return _of_triton(seen[0]) if seen else {}


def _of_triton(kernel):
    return {
        "registers": kernel.n_regs,
        "local_bytes": 4 * kernel.n_spills,
        "shared_bytes": kernel.metadata.shared,
        "block": 32 * kernel.metadata.num_warps,
    }
