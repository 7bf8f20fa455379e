"""Products as a tensor core takes them, in Triton's interpreter."""

import numpy as np
import pytest
from support.bfloat16_on_cpu import round_bfloat16
from triton import language as tl
from triton.runtime import interpreter


@pytest.fixture(autouse=True)
def tensor_core(monkeypatch):
    """Products as a GPU computes them: TF32 cuts factors off to 11 bits; bfloat16 is rounded."""
    builder, cast = interpreter.InterpreterBuilder, round_bfloat16(monkeypatch)

    def from_whole(self, x, dtype):
        return cast(self, cast(self, x, tl.float32), dtype)

    def dot(self, a, b, d, precision, *_):
        x, y = (cast(self, z, tl.float32).data for z in (a, b))
        if "TF32" in str(precision) and not str(precision).endswith("x3"):
            x, y = (
                (np.ascontiguousarray(z).view(np.uint32) & 0xFFFFE000).view(np.float32)
                for z in (x, y)
            )
        return interpreter.TensorHandle(x @ y + d.data, d.dtype.scalar)

    monkeypatch.setattr(builder, "create_dot", dot)
    for name in ("create_ui_to_fp", "create_si_to_fp"):
        monkeypatch.setattr(builder, name, from_whole)
