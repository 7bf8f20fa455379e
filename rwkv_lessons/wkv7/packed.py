"""Packed sequences for a method that takes them one by one.

Where they start the host has to read, which torch.compile cannot trace: there it meets an operator.
"""

import torch

from ..runtime.precision import sum_dtype

METHODS = {}  # by name: o and s1 of checked (r, w, k, v, a, b, s0)
TENSORS = ", ".join(f"Tensor {name}" for name in "rwkvab")
GIVEN = f"str method, {TENSORS}, Tensor? s0, Tensor cu_seqlens"
NAME = "rwkv_lessons::wkv7_packed"


def packed(name, *given):
    """o `[1, T, H, V]` and s1 `[S, H, K, V]` by the method of that name in `METHODS`."""
    compute = torch.ops.rwkv_lessons.wkv7_packed if torch.compiler.is_compiling() else one_by_one
    return compute(name, *given)


def one_by_one(name, r, w, k, v, a, b, s0, cu_seqlens):
    """Each sequence by itself."""
    real, ends, outputs, states = sum_dtype(r.dtype), cu_seqlens.tolist(), [], []
    for n, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        if s0 is None:
            s = r.new_zeros(1, *r.shape[2:], v.shape[-1], dtype=real)
        else:
            s = s0[n : n + 1].to(real)
        if end > start:
            o, s = METHODS[name](*(x[:, start:end] for x in (r, w, k, v, a, b)), s)
            outputs.append(o)
        states.append(s)
    return torch.cat(outputs, 1), torch.cat(states)


def shapes(name, r, w, k, v, a, b, s0, cu_seqlens):
    """What `one_by_one` returns, without values."""
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    S = cu_seqlens.shape[0] - 1
    return o, r.new_empty(S, *r.shape[2:], v.shape[3], dtype=sum_dtype(r.dtype))


def gradients(name, *given):
    """The gradients of r, w, k, v, a, b and s0 (of zeros, where it is None); computes o again."""
    *tensors, s0, cu_seqlens, do, ds1 = given
    r, v = tensors[0], tensors[3]
    second = torch.is_grad_enabled()
    with torch.enable_grad():
        if s0 is None:
            S = cu_seqlens.shape[0] - 1
            s0 = r.new_zeros(S, *r.shape[2:], v.shape[3], dtype=sum_dtype(r.dtype))
        leaves = [x if second and x.requires_grad else x.detach() for x in (*tensors, s0)]
        leaves = [x if x.requires_grad else x.requires_grad_() for x in leaves]
        results = one_by_one(name, *leaves, cu_seqlens)
        options = {"create_graph": second, "materialize_grads": True}
        return torch.autograd.grad(results, leaves, (do, ds1), **options)


def gradient_shapes(name, *given):
    *tensors, s0, _, _, ds1 = given
    like = (*tensors, ds1 if s0 is None else s0)
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like)


def gradients_in_order(*given):
    """`gradients` in the layout that `gradient_shapes` promises."""
    return tuple(x.contiguous().clone() for x in gradients(*given))


def keep_inputs(ctx, inputs, output):
    ctx.name, *tensors = inputs
    ctx.save_for_backward(*tensors)


def backward(ctx, do, ds1):
    given = (ctx.name, *ctx.saved_tensors, do, ds1)
    operator = torch.ops.rwkv_lessons.wkv7_packed_backward
    *results, ds0 = (gradients if torch.is_grad_enabled() else operator)(*given)
    return None, *results, None if ctx.saved_tensors[6] is None else ds0, None


torch.library.define(NAME, f"({GIVEN}) -> (Tensor, Tensor)")
torch.library.impl(NAME, "CompositeExplicitAutograd", one_by_one)
torch.library.register_fake(NAME, shapes)
torch.library.register_autograd(NAME, backward, setup_context=keep_inputs)
torch.library.define(
    f"{NAME}_backward", f"({GIVEN}, Tensor do, Tensor ds1) -> ({', '.join(['Tensor'] * 7)})"
)
torch.library.impl(f"{NAME}_backward", "CompositeExplicitAutograd", gradients_in_order)
torch.library.register_fake(f"{NAME}_backward", gradient_shapes)
