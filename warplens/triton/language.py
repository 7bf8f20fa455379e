"""Triton's language for its interpreter: what a kernel's functions see, and only while one runs.

Beyond what Triton itself patches: functions of `libdevice`, names that a file imported from
triton.language, loop variables that are tensors as in a compiled kernel, and sums of bfloat16.
"""

import ast
import contextlib
import dataclasses
import functools
import operator
import sys

import numpy as np

from ..compiled.functions import is_kernel_function, named, rebuild
from .data_flow import mark


class Called:
    """A function of a kernel, rewritten for the interpreter when it is first called.

    Triton's own class patches the language at every call and leaves it patched. `tick`, if there
    is one, is called whenever a loop of the function goes round.
    """

    def __init__(self, fn, tick=None):
        self.fn, self.__name__, self.tick = fn, fn.__name__, tick

    @functools.cached_property
    def rewritten(self):
        from triton.runtime.interpreter import FunctionRewriter

        if self.tick is None:
            return FunctionRewriter(self.fn).rewrite_ast()
        self.fn.__globals__[TICK] = self.tick
        rewriter = FunctionRewriter(self.fn)
        rewriter.ast_transformer = _ticking()
        return rewriter.rewrite_ast()

    def __call__(self, *args, **named):
        return self.rewritten(*args, **named)


TICK = "__a_loop_goes_round__"


@functools.cache
def _ticking():
    """Triton's rewriter, that also has every loop call TICK before anything else."""
    from triton.runtime.interpreter import ASTTransformer

    class Ticking(ASTTransformer):
        def visit_While(self, node):
            self.generic_visit(node)
            call = ast.Expr(ast.Call(ast.Name(TICK, ast.Load()), [], []))
            for part in ast.walk(call):
                ast.copy_location(part, node)
            node.body.insert(0, call)
            return node

        visit_For = visit_While

    return Ticking()


def called(function, tick):
    """A user's kernel function, with those that it calls; closures become globals."""
    copy = rebuild(function, {}, lambda value, copy: Called(_in_scope(copy), tick))
    return Called(_in_scope(copy), tick)


def _in_scope(function):
    """Of a rebuilt function: its closure as globals, and the language under the names it has."""
    scope = function.__globals__
    scope.update(named(function))
    for name, value in named(function).items():
        if stands := _of_language(value):
            scope[name] = stands
    if scope.get("range", range) is range:
        scope["range"] = loop
    return function


def _of_language(value):
    """What a function of triton.language is that a file imported by its name; else None."""
    import triton.language as tl

    if value is tl.range:
        return loop
    if tl.core.is_builtin(value):
        return _with_semantic(value)
    if type(value).__module__.startswith("triton.runtime") and not is_kernel_function(value):
        return _standard(value.fn) if hasattr(value, "arg_names") else None
    if getattr(value, "__module__", None) == GENERIC:
        return _with_semantic(getattr(sys.modules[CUDA], value.__name__))
    return None


def _with_semantic(member):
    from triton.runtime import interpreter

    @functools.wraps(member)
    def function(*args, **named):
        named.pop("_semantic", None)
        return member(*args, **named, _semantic=interpreter.interpreter_semantic)

    return function


GENERIC, CUDA = "triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"


def loop(arg1, arg2=None, step=None, **options):
    """`range` and `tl.range`: their variable is a tensor, which has `.to(…)`."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    bounds = (0, arg1) if arg2 is None else (arg1, arg2)
    bounds = (*bounds, 1 if step is None else step)
    wide = any(isinstance(n, tl.tensor) and n.dtype.primitive_bitwidth > 32 for n in bounds)
    kind, bits = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for n in range(*map(operator.index, bounds)):
        handle = TensorHandle(np.array([n], bits), kind)
        mark(handle)  # bounds that were read from memory are a branch that depends on them
        yield tl.tensor(handle, kind)


_standard = functools.cache(Called)  # tl.sum and its like, once per session


@contextlib.contextmanager
def language():
    """triton.language as the interpreter needs it; afterwards as it was."""
    import types

    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    scope = interpreter._LangPatchScope()
    kinds = (JITFunction, interpreter.InterpretedFunction)
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("triton.language")]
    try:
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, kinds):
                    scope.set_attr(module, name, _standard(value.fn))
                    if module is tl and name in vars(tl.tensor):
                        scope.set_attr(tl.tensor, name, _method(_standard(value.fn)))
        everywhere = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        patched = interpreter._patch_lang(everywhere)
        try:
            # Triton 3.6 makes an int of an array of one, which numpy 2.4 refuses.
            tl.tensor.__index__ = lambda self: int(self.handle.data.item())
            for owner, name, value in _more():
                scope.set_attr(owner, name, value)
            yield
        finally:
            scope.restore()  # what came last goes first
            patched.restore()
    finally:
        scope.restore()


def _more():
    """What Triton leaves as it is when it interprets: (module or class, name, value)."""
    import triton.language as tl
    from triton.runtime import interpreter

    yield tl, "range", loop
    # Looking at every sum of integers whether it wraps takes half of the time, and nobody is told.
    builder = interpreter.interpreter_builder
    yield builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False)
    for owner in (tl, tl.core):
        for name in ("reduce", "associative_scan"):
            yield owner, name, _widened(getattr(owner, name))
    own = interpreter.ReduceOps.generic_reduce
    yield interpreter.ReduceOps, "generic_reduce", lambda self, input: _folded(self, input, own)
    extra = sys.modules.get(CUDA.rpartition(".")[0])
    for name in ("gdc_wait", "gdc_launch_dependents"):  # launches follow each other here anyway
        if hasattr(extra, name):
            yield extra, name, lambda: None
    if CUDA in sys.modules:
        functions = vars(sys.modules[CUDA]).items()
        functions = [(name, _with_semantic(f)) for name, f in functions if tl.core.is_builtin(f)]
        for name, function in functions:
            yield sys.modules[CUDA], name, function
            if hasattr(sys.modules.get(GENERIC), name):
                yield sys.modules[GENERIC], name, function


def _widened(own):
    """A reduction or scan of bfloat16, whose bits it would add up as integers, in float32."""

    def reduce(input, axis, combine_fn, *args, **named):
        import triton.language as tl

        single = not isinstance(input, tuple)
        inputs = (input,) if single else input
        wide = [x.to(tl.float32) if x.dtype == tl.bfloat16 else x for x in inputs]
        results = own(wide[0] if single else tuple(wide), axis, combine_fn, *args, **named)
        results = (results,) if single else results
        results = [
            y.to(tl.bfloat16) if x.dtype == tl.bfloat16 else y
            for x, y in zip(inputs, results, strict=True)
        ]
        return results[0] if single else tuple(results)

    return reduce


def _folded(reduction, input, own):
    """A reduction by a kernel's own function, which is called once for each element of the axis.

    Triton calls it for each number of the tensor: seconds for what a kernel does in every token. It
    is left to do so if the function asks whether a number is true.
    """
    import triton.language as tl

    class Asked(Exception):
        pass

    def refuse(x):
        raise Asked

    tensors, axis = reduction.unravel(input, reduction.axis)

    def at(n):
        slices = (np.take(x.handle.data, n, axis) for x in tensors)
        return tuple(reduction.to_tensor(y, x.dtype) for x, y in zip(tensors, slices, strict=True))

    truth, tl.tensor.__bool__ = tl.tensor.__bool__, refuse
    try:
        sums = at(0)
        for n in range(1, tensors[0].handle.data.shape[axis]):
            sums = reduction.combine_fn.fn(*sums, *at(n))
            sums = sums if isinstance(sums, tuple) else (sums,)
    except Asked:
        sums = ()
    finally:
        tl.tensor.__bool__ = truth
    if not sums or not all(isinstance(x, tl.tensor) for x in sums):
        return own(reduction, input)
    results = [x.handle.data for x in sums]
    if reduction.keep_dims:
        sizes = enumerate(input[0].handle.data.shape)
        shape = [1 if reduction.axis in (None, n) else size for n, size in sizes]
        results = [x.reshape(shape) for x in results]
    elif tensors[0].handle.data.ndim == 1:
        results = [x.item() for x in results]
    return [reduction.to_tensor(y, x.dtype) for x, y in zip(tensors, results, strict=True)]


def _method(called):
    return lambda self, *args, **named: called(self, *args, **named)
