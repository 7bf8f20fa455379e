"""bfloat16 for the Hopper kernels on a CPU."""

import pytest
from support.bfloat16_on_cpu import round_bfloat16
from triton import language as tl
from triton.runtime import interpreter


@pytest.fixture(autouse=True)
def bfloat16(monkeypatch):
    """The products of bfloat16 tiles, which the interpreter would multiply as integers."""
    builder, cast = interpreter.InterpreterBuilder, round_bfloat16(monkeypatch)
    dot = builder.create_dot

    def product(self, *factors_and_more):
        *factors, b_sum, precision, imprecise = factors_and_more
        factors = [cast(self, x, tl.float32) for x in factors]
        return dot(self, *factors, b_sum, precision, imprecise)

    monkeypatch.setattr(builder, "create_dot", product)
