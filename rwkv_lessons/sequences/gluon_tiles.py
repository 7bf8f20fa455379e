"""What kernels in chunks share, in Gluon: raw decays, and conversions that ptxas does well.

With inline PTX, a pair of bfloat16 at a time. What Triton makes of the same in Python takes half as
many instructions again, and rounds with the unit that exp2 needs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .tiles import LOG2E


@gluon.jit
def raw_decay(b_x):
    """The log decay -exp(x) of a raw parameter x, in float32."""
    return -gl.exp2(b_x.to(gl.float32) * LOG2E)


@gluon.jit
def rounded(x):
    """A float32 tile in bfloat16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def widened(x):
    """A bfloat16 tile in float32."""
    both: gl.constexpr = """{
        .reg .b32 first, second;
        shl.b32 first, $2, 16;
        and.b32 second, $2, 0xffff0000;
        mov.b32 $0, first;
        mov.b32 $1, second;
    }"""
    return gl.inline_asm_elementwise(both, "=f,=f,r", [x], gl.float32, is_pure=True, pack=2)
