"""Descriptions of tiles, of 64 columns or more, which Hopper's tensor memory accelerator copies."""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..runtime.bounded import remembered
from ..runtime.launch_tiles import replace_base

C = gl.constexpr(64)  # rows and columns of a tile


def tiles(x, columns, height=C.value, width=C.value):
    """Describes a contiguous x as rows of so many columns, of which tiles are moved.

    Triton takes 7 µs to check a descriptor; those of the same shape are copies of the first.
    """
    return replace_base(described(x.numel(), columns, height, width, x.dtype), x)


@remembered
def described(*key):
    """A description without a tensor: of so many elements and columns, and of a tile's rows and
    columns of a dtype."""
    elements, columns, height, width, dtype = key
    shape, block = [elements // columns, columns], [height, width]
    layout = gl.NVMMASharedLayout(128, 8 * dtype.itemsize, 2)
    nowhere = torch.empty(0, dtype=dtype, device="meta")
    model = replace_base(TensorDescriptor(nowhere, shape, [columns, 1], block, layout), None)
    model.__dict__.update(key=key, kind=(height, width, dtype))
    return model
