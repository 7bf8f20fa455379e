"""A tensor as a kernel in Gluon is given it."""


def described(x, columns, tile=(64, 64)):
    """A contiguous 16-bit tensor as rows of so many columns, of which tiles are copied."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(x, [x.numel() // columns, columns], [columns, 1], list(tile), layout)
