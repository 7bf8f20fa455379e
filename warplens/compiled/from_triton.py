"""From a Triton kernel to a cubin, with no GPU; also where TRITON_INTERPRET was set."""

import contextlib
import dataclasses
import io
import json
import re
import sys
from pathlib import Path

from ..architectures import number_of
from . import cubin
from .apart import last_words
from .functions import named, plain, rebuild
from .targets import own_target

KEPT = "ptxas_and_file.json"
SAID = "registers"  # by ptxas, of every kernel; a check that takes long prints, too, meanwhile


def missing():
    """None, or what is missing here, in one sentence."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return "triton is missing: it has wheels for Linux only"
    return None


def prepare(kernel, args, constants, options):
    """(parameters, constants, options), checked: parameters are {name: (type, value, divisible)}.

    `type` is "constexpr" or Triton's ("*fp32", "i32"); `divisible` by 16.
    """
    from triton.backends.nvidia.compiler import CUDAOptions

    params = _jit(kernel, {}).params
    names = [p.name for p in params]
    if len(args) > len(params):
        raise TypeError(f"args are {len(args)}, the kernel takes {len(params)}: {', '.join(names)}")
    arguments = {p.name: p.default for p in params if p.has_default}
    arguments |= dict(zip(names, args, strict=False))
    arguments |= {k: v for k, v in (options | constants).items() if k in names}
    if absent := [n for n in names if n not in arguments]:
        raise TypeError(f"arguments missing: {', '.join(absent)}")
    options = {k: v for k, v in options.items() if k not in names}
    allowed = {f.name for f in dataclasses.fields(CUDAOptions)}
    if unknown := set(options) - allowed:
        raise TypeError(f"{min(unknown)!r} is neither a parameter nor an option of Triton")
    parameters = {p.name: _parameter(p, arguments[p.name]) for p in params}
    return parameters, {k: v for k, v in constants.items() if k not in names}, options


def _parameter(param, value):
    """As a launch would specialise it: 1 and None are constants, multiples of 16 are marked."""
    if param.is_constexpr or value is None:
        return "constexpr", value, False
    if isinstance(value, str):
        kind, _, alignment = value.partition(":")
        alignment = int(alignment) if alignment else 16 if kind.startswith("*") else 1
        return kind, None, alignment % 16 == 0
    if hasattr(value, "block_shape"):
        kind = pointer_type(value.base)[1:]
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""  # of Gluon
        return f"tensordesc<{kind}{list(value.block_shape)}{layout}>", None, False
    if hasattr(value, "data_ptr"):
        return pointer_type(value), None, value.data_ptr() % 16 == 0
    if isinstance(value, bool):
        return "u1", None, False
    if isinstance(value, float):
        return "fp32", None, False
    if not isinstance(value, int):
        raise TypeError(
            f"{param.name} is a {type(value).__name__}, "
            'needs a tensor, a number or a type as text ("*fp32", "i32")'
        )
    if value == 1 and not param.do_not_specialize:
        return "constexpr", 1, False
    kind = "i32" if -(2**31) <= value < 2**31 else "i64"
    return kind, None, value % 16 == 0 and not param.do_not_specialize


def pointer_type(tensor):
    """Triton's name of a tensor's type: "*fp32"."""
    from triton._utils import canonicalize_dtype

    return "*" + canonicalize_dtype(str(tensor.dtype).removeprefix("torch."))


def build(kernel, parameters, arch, constants, options):
    """The Cubin of a kernel whose arguments are as `prepare` returned them."""
    from triton import knobs

    function = plain(kernel)
    with knobs.runtime.scope(), knobs.compilation.scope(), knobs.nvidia.scope():
        knobs.runtime.interpret = False
        knobs.nvidia.dump_ptxas_log = True
        with _language_for_compiling():
            jit = _jit(kernel, constants)
            source = _source(jit)(
                fn=jit,
                signature={name: kind for name, (kind, _, _) in parameters.items()},
                constexprs={n: v for n, (kind, v, _) in parameters.items() if kind == "constexpr"},
                attrs={
                    (i,): [["tt.divisibility", 16]]
                    for i, (_, _, divisible) in enumerate(parameters.values())
                    if divisible
                },
            )
            try:
                target, file = _target(arch, function), function.__code__.co_filename
                compiled, log, file = _compiled(source, target, options, file)
            except Exception as error:
                raise _explain(error, function) from None
    return cubin.Cubin(
        code=compiled.asm["cubin"],
        ptx=compiled.asm["ptx"],
        log=log,
        launch_shared=compiled.metadata.shared,
        file=file,
        ttgir=compiled.asm.get("ttgir"),
    )


def _compiled(source, target, options, file):
    """A kernel, what ptxas said of it, and the file that its lines name.

    Both are kept beside the kernel in Triton's cache, where a copy of a source finds its twin's.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    def compiled():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            return triton.compile(source, target=target, options=options), printed.getvalue()

    kernel, log = compiled()
    cache = get_cache_manager(kernel.hash)
    if SAID not in log and (cached := cache.get_file(KEPT)):
        there, its_file = json.loads(Path(cached).read_text(encoding="utf-8"))
        if SAID in there:
            return kernel, there, its_file
    if SAID not in log:  # it was in the cache, from elsewhere
        with triton.knobs.compilation.scope():
            triton.knobs.compilation.always_compile = True
            kernel, log = compiled()
    cache.put(json.dumps([log, file]), KEPT, binary=False)
    return kernel, log, file


def _target(arch, function):
    """An architecture ("sm_90") as Triton names it, or as the kernel's package does."""
    from triton.backends.compiler import GPUTarget

    target, own = GPUTarget("cuda", number_of(arch), 32), own_target(function)
    return own(target) if own else target


def _source(jit):
    """What `triton.compile` is to be given of a kernel of Triton or of Gluon."""
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    return GluonASTSource if isinstance(jit, GluonJITFunction) else ASTSource


def _jit(kernel, constants):
    """The kernel as Triton compiles it: interpreted functions are decorated anew."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import ConstexprFunction

    def convert(value, function):
        if isinstance(value, ConstexprFunction):
            return value
        options = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment")
        source = getattr(value, "kwargs", None) or vars(value)
        kind = type(value) if isinstance(value, triton.JITFunction) else triton.JITFunction
        return kind(function, **{k: source[k] for k in options if source.get(k)})

    while not hasattr(kernel, "arg_names") or not hasattr(kernel.fn, "__code__"):
        kernel = kernel.fn  # under triton.autotune and triton.heuristics
    # Gluon's functions are never interpreted, but may call some that are.
    interpreted = [x for x in named(kernel.fn).values() if isinstance(x, InterpretedFunction)]
    if isinstance(kernel, triton.JITFunction) and not constants and not interpreted:
        return kernel
    return convert(kernel, rebuild(kernel.fn, constants, convert))


@contextlib.contextmanager
def _language_for_compiling():
    """Where Triton was imported for interpreting, tl.sum and its like have to be compiled again."""
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    modules = [m for name, m in list(sys.modules.items()) if name.startswith("triton.language")]
    places = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, InterpretedFunction)
    ]
    compiled = {value: triton.JITFunction(value.fn) for _, _, value in places}
    members = [
        (tl.tensor, name, vars(tl.tensor)[name], compiled[value])
        for module, name, value in places
        if module is tl and name in vars(tl.tensor)
    ]
    changes = [(m, name, value, compiled[value]) for m, name, value in places] + members
    try:
        for owner, name, _, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old, _ in changes:
            setattr(owner, name, old)


def _explain(error, function):
    from triton.compiler.errors import CompilationError

    # An error in a function that the kernel calls is the cause of the error at the call.
    inner = error
    while isinstance(inner.__cause__, CompilationError):
        inner = inner.__cause__
    if not isinstance(error, CompilationError):
        text = str(error)
        ptxas = re.search(r"ptxas (?:error|fatal)\s*:\s*(.*)", text)
        lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
        return cubin.refuse(function, ptxas[1] if ptxas else lines[0])
    why = inner.error_message or inner.__cause__ or type(inner).__name__
    why = str(why).strip().splitlines()[0]
    line = function.__code__.co_firstlineno + _decorators(function)
    return cubin.refuse(function, why, line + error.node.lineno - 1 if error.node else None)


def with_reason(error, function):
    """A CompileError with what the compiler printed, where it says itself only that it failed."""
    if "PassManager::run failed" not in str(error) or not getattr(error, "printed", ""):
        return error
    return cubin.refuse(function, *last_words(error.printed))


LIKELY = {  # words of a compiler that gave up → what to look at
    "layout": "two layouts that cannot meet: gl.convert_layout on the way from one to the other",
    "encoding": "two layouts that cannot meet: gl.convert_layout on the way from one to the other",
    "not done": "something that is unrolled without an end: static_range, a recursion",
    "memory": "something that is unrolled without an end, or a tile that is far too large",
}


def crashed(crash, function):
    """The CompileError of a compiler that ended without a word for the kernel's author."""
    refused = cubin.refuse(function, crash.why, crash.line)
    likely = next((LIKELY[word] for word in LIKELY if word in crash.why.lower()), None)
    if likely is None:
        gluon = "gl" in function.__code__.co_names
        likely = LIKELY["layout"] if gluon else "a tile's shape or type that this hardware lacks"
    return cubin.CompileError(f"{refused}\n    likely: {likely}")


def _decorators(function):
    """How many lines stand above `def` in the source: Triton counts lines from there."""
    import inspect

    lines, _ = inspect.getsourcelines(function)
    return next(n for n, line in enumerate(lines) if line.lstrip().startswith("def "))
