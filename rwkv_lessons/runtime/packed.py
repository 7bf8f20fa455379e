"""Packed sequences for methods that take one sequence at a time.

Where they start the host has to read, which torch.compile cannot trace: there it meets an operator.
"""

import torch

from .precision import sum_dtype


class Packed:
    """Packed sequences of an operation, with gradients of every order.

    Args:
        operator: its name, "wkv6_packed"; torch knows it and its backward by it.
        per_token: letters of the tensors `[1, T, H, K]` or, v, `[1, T, H, V]`; r is the first.
        shared: letters of those that all sequences share, which follow.
    """

    def __init__(self, operator, per_token, shared=""):
        self.methods = {}  # by name: o and s1 of checked (*tensors, s0)
        self.tokens, self.v = len(per_token), per_token.index("v")
        letters = per_token + shared
        parameters = ", ".join(f"Tensor {letter}" for letter in letters)
        parameters = f"str method, {parameters}, Tensor? s0, Tensor cu_seqlens"
        name = f"rwkv_lessons::{operator}"
        torch.library.define(name, f"({parameters}) -> (Tensor, Tensor)")
        torch.library.impl(name, "CompositeExplicitAutograd", self.one_by_one)
        torch.library.register_fake(name, self.shapes)
        torch.library.register_autograd(name, self.backward, setup_context=keep_inputs)
        name, results = f"{name}_backward", ", ".join(["Tensor"] * (len(letters) + 1))
        torch.library.define(name, f"({parameters}, Tensor do, Tensor ds1) -> ({results})")
        torch.library.impl(name, "CompositeExplicitAutograd", self.gradients_in_order)
        torch.library.register_fake(name, gradient_shapes)
        self.operator = getattr(torch.ops.rwkv_lessons, operator)
        self.backward_operator = getattr(torch.ops.rwkv_lessons, f"{operator}_backward")

    def __call__(self, method, *args):
        """o `[1, T, H, V]` and s1 `[S, H, K, V]` by the method of that name in `methods`.

        Args:
            args: the tensors, s0 `[S, H, K, V]` or None, and cu_seqlens `[S + 1]`.
        """
        compute = self.operator if torch.compiler.is_compiling() else self.one_by_one
        return compute(method, *args)

    def one_by_one(self, method, *args):
        """Each sequence by itself."""
        *tensors, s0, cu_seqlens = args
        tokens, shared = tensors[: self.tokens], tensors[self.tokens :]
        ends, outputs, states = cu_seqlens.tolist(), [], []
        s0 = self.zeros(tensors, len(ends) - 1) if s0 is None else s0
        for n, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            s = s0[n : n + 1].to(sum_dtype(tensors[0].dtype))
            if end > start:
                o, s = self.methods[method](*(x[:, start:end] for x in tokens), *shared, s)
                outputs.append(o)
            states.append(s)
        return torch.cat(outputs, 1), torch.cat(states)

    def zeros(self, tensors, sequences):
        """The states before the first tokens, `[S, H, K, V]`."""
        r, v = tensors[0], tensors[self.v]
        return r.new_zeros(sequences, *r.shape[2:], v.shape[3], dtype=sum_dtype(r.dtype))

    def shapes(self, method, *args):
        """What `one_by_one` returns, without values."""
        *tensors, _, cu_seqlens = args
        o = torch.empty_like(tensors[self.v], memory_format=torch.contiguous_format)
        return o, self.zeros(tensors, cu_seqlens.shape[0] - 1)

    def gradients(self, method, *args):
        """Those of the tensors and of s0 (of zeros, where it is None); computes o again."""
        *tensors, s0, cu_seqlens, do, ds1 = args
        second = torch.is_grad_enabled()
        with torch.enable_grad():
            s0 = self.zeros(tensors, cu_seqlens.shape[0] - 1) if s0 is None else s0
            leaves = [x if second and x.requires_grad else x.detach() for x in (*tensors, s0)]
            leaves = [x if x.requires_grad else x.requires_grad_() for x in leaves]
            results = self.one_by_one(method, *leaves, cu_seqlens)
            options = {"create_graph": second, "materialize_grads": True}
            return torch.autograd.grad(results, leaves, (do, ds1), **options)

    def gradients_in_order(self, method, *args):
        """`gradients` in the layout that `gradient_shapes` promises."""
        return tuple(x.contiguous().clone() for x in self.gradients(method, *args))

    def backward(self, ctx, do, ds1):
        args = (ctx.method, *ctx.saved_tensors, do, ds1)
        compute = self.gradients if torch.is_grad_enabled() else self.backward_operator
        *results, ds0 = compute(*args)
        return None, *results, None if ctx.saved_tensors[-2] is None else ds0, None


def gradient_shapes(method, *args):
    """What `gradients` returns, without values."""
    *tensors, s0, _, _, ds1 = args
    like = (*tensors, ds1 if s0 is None else s0)
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like)


def keep_inputs(ctx, inputs, output):
    ctx.method, *tensors = inputs
    ctx.save_for_backward(*tensors)
