"""What `triton.autotune` and `triton.heuristics` choose for a launch that nobody can time."""

import dataclasses

from ..compiled.assembly import ARCHITECTURES, CompileError, assembly

ARCH = "sm_90"  # the GPU that a configuration has to fit


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A kernel without its tuner: what `triton.jit` made, and all that the launch gives by name.

    Attributes:
        configuration: what was taken, in words; None where nothing had to be chosen.
    """

    kernel: object
    named: dict
    configuration: str | None = None


def choose(kernel, args, named):
    """The `Chosen` of a launch: the first configuration whose kernel fits an SM, in their order.

    Hooks of the configuration are called, as a launch would, before the kernel is looked at.

    Args:
        kernel: of Triton, under `autotune` and `heuristics` or bare.
        args, named: of the launch. What is given by name is not chosen.
    """
    if hasattr(kernel, "configs"):
        return _tuned(kernel, args, named)
    if isinstance(getattr(kernel, "values", None), dict):
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | named
        for name, compute in kernel.values.items():
            if name not in named:
                arguments[name] = compute(arguments)
                named = named | {name: arguments[name]}
        return choose(kernel.fn, args, named)
    return Chosen(kernel, named)


def _tuned(tuner, args, named):
    arguments = dict(zip(tuner.arg_names, args, strict=False))
    if all(config.kwargs.keys() <= named.keys() for config in tuner.configs):
        return choose(tuner.fn, args, named)
    configs = _pruned(tuner, arguments, named)
    for position, config in enumerate(configs):
        last = position == len(configs) - 1
        options = config.all_kwargs() | named
        if config.pre_hook is not None:
            config.pre_hook(arguments | options)
        chosen = choose(tuner.fn, args, options)
        if last or _fits(chosen.kernel, args, chosen.named):
            break
    words = ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())
    which = "the only" if last and not position else "the first that fits"
    text = f"configuration: {which} of {len(tuner.configs)}, {words}"
    return dataclasses.replace(chosen, configuration=text)


def _pruned(tuner, arguments, named):
    """The configurations that the tuner would time."""
    tuner.nargs = arguments
    try:
        return tuner.prune_configs(named)
    finally:
        tuner.nargs = None


def _fits(kernel, args, named):
    """Whether a block can have the shared memory; True where the kernel cannot be compiled here."""
    try:
        code = assembly(kernel, *args, arch=ARCH, **named)
    except CompileError:
        return False
    except (ImportError, OSError, RuntimeError, TypeError, ValueError):
        return True
    return code.shared_bytes <= ARCHITECTURES[ARCH].shared_bytes_block
