"""Launching kernels that take tensors as descriptions of tiles, for less than Triton does."""

import copy
import inspect

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .bounded import Table
from .gluon_names import restore_older_names
from .remembered_launches import REMEMBERS, first_launches, machine_code, tile_encoder

restore_older_names()
_metadata = {}  # by the kind of a description
# Private: without it no launch is remembered, and Triton makes this of each description.
make_tensordesc_arg = tile_encoder()
encoded = Table(4096)  # by address and key: what `encode` returned, some 500 bytes each


def replace_base(model, x):
    new = object.__new__(TensorDescriptor)
    new.__dict__.update(model.__dict__, base=x)
    return new


def launch_tiles(kernel, grid, num_warps, tensors, numbers, constants, **options):
    """`launch_triton.launch` for a kernel of which some tensors are descriptions by `tiles`.

    grid: three numbers. The key has all that chooses machine code: of a tensor, whether it is None,
    the tiles it is described in, or else its dtype and alignment.

    Returns:
        As `launch_triton.launch`.
    """
    addresses, kinds, described = [], [], []
    for x in tensors:
        if x is None:
            addresses.append(None)
            kinds.append(None)
        elif type(x) is TensorDescriptor:
            described.append((len(addresses), x.key, x))
            addresses.append(x.base.data_ptr())
            kinds.append(x.kind)
        else:
            address = x.data_ptr()
            addresses.append(address)
            kinds.append((x.dtype, address % 16 == 0))
    device = torch.cuda.current_device()
    key = (id(kernel), device, num_warps, constants, *options.items(), *kinds)
    cached = machine_code.get(key)
    if cached is None:
        with first_launches:
            compiled = kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps, **options)
            if REMEMBERS and compiled is not None:  # it is None where launches are only recorded
                run = launcher(compiled, tensors)
                machine_code[key] = run, compiled.function, compiled.packed_metadata
        return None
    # Not before: `_metadata` is known since `cached` is.
    addresses = with_descriptions(addresses, described)
    run, function, metadata = cached
    stream = torch._C._cuda_getCurrentRawStream(device)
    run(*grid, stream, function, metadata, None, None, None, *addresses, *numbers, *constants)
    return cached


class Address:
    """As much of a tensor as encoding a description of it takes."""

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def with_descriptions(addresses, described):
    """Addresses, of which some are replaced by what a kernel gets of a description.

    described: place, key, and the description, whose base may be None.
    """
    arguments, after = [], 0
    for place, key, model in described:
        address = addresses[place]
        arguments += addresses[after:place]
        arguments += encoded.get((address, key)) or encode(address, model)
        after = place + 1
    arguments += addresses[after:]
    return arguments


def encode(address, described):
    """A description as the kernel gets it.

    Triton encodes all of them at each launch, for 4 µs each. But torch gives a call the memory of
    the one before: the same tiles at the same address have the same encoding.
    """
    metadata = _metadata.get(described.kind)
    if described.base is None:
        described = replace_base(described, Address(address))
    if metadata is None:  # where Triton has to do it
        return (described,)
    try:
        encoding = make_tensordesc_arg(described, metadata)
    except RuntimeError:  # a thread of autograd has no CUDA context before its first kernel
        torch.cuda.mem_get_info()  # now it has
        encoding = make_tensordesc_arg(described, metadata)
    encoded[address, described.key] = encoding = tuple(encoding)
    return encoding


def launcher(compiled, tensors):
    """What launches a compiled kernel, with encoded descriptions if this Triton lets it."""
    try:
        inside = inspect.getclosurevars(compiled.run.launch).nonlocals["launcher"]
    except (AttributeError, KeyError, TypeError):
        return compiled.run
    kinds = [x.kind for x in tensors if type(x) is TensorDescriptor]
    _metadata.update(zip(kinds, compiled.metadata.tensordesc_meta, strict=True))
    run = copy.copy(compiled.run)
    run.launch = inside  # Triton's function, which encodes nothing
    return run
