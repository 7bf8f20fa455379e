"""What the backward pass of a node needs, as tensors that the node saves.

A node runs an operation that has gradients of its own. The operation's graph would hold tensors
that only the node knows of: they would stay in memory after the backward pass, and
torch.utils.checkpoint could not drop them and compute them again. Here that graph holds numbers,
and the tensors are among the node's `ctx.saved_tensors`.
"""

import contextlib
import copy

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks


class Saved:
    """A node's tensors by number: while its forward pass collects them, and while others read."""

    def __init__(self):
        self.tensors = []

    def add(self, x):
        """Its number."""
        self.tensors.append(x.detach())
        return len(self.tensors) - 1

    def __getitem__(self, number):
        return self.tensors[number]

    def leave(self, ctx, call, main, As, s0):
        """The node saves them, and what its backward pass needs of the call.

        Args:
            main: the `SavedStep` of all its tokens; As: of all ranks; s0: as it was given, or None.
        """
        ctx.saved, ctx.call, ctx.main, ctx.As = self, call, main, self.add(As.clone())
        ctx.s0_dtype = None if s0 is None else s0.dtype
        ctx.save_for_backward(*self.tensors)
        self.tensors = ()

    @contextlib.contextmanager
    def of(self, ctx):
        """Has what the node saved: first of all a checkpoint computes it again."""
        self.tensors = ctx.saved_tensors
        try:
            yield
        finally:
            self.tensors = ()

    def put_away(self, item):
        """A copy of the thing, whose attributes that are tensors are here."""
        away = copy.copy(item)
        here = {name: x for name, x in vars(item).items() if isinstance(x, torch.Tensor)}
        for name in here:
            delattr(away, name)
        away.numbers = {name: self.add(x) for name, x in here.items()}
        return away

    def taken_back(self, away):
        """A copy of what `put_away` returned, with its tensors."""
        item = copy.copy(away)
        vars(item).update({name: self[number] for name, number in away.numbers.items()})
        return item


class SavedStep:
    """A function whose results are computed in the forward pass, and gradients in the backward."""

    def __init__(self, saved):
        self.saved = saved

    def results(self, function, inputs, learns):
        """function(*inputs), a tuple of tensors, without their graph.

        Args:
            inputs: tensors, or None.
            learns: of each, whether it is to have a gradient.
        """
        leaves, hooks = [x if x is None else x.detach() for x in inputs], contextlib.nullcontext()
        if any(learns):
            hooks = saved_tensors_hooks(self.saved.add, self.saved.__getitem__)
        with torch.set_grad_enabled(any(learns)), hooks:
            root, pairs = torch.empty(0, requires_grad=True), zip(leaves, learns, strict=True)
            leaves = [Beginning.apply(root, x) if want else x for x, want in pairs]
            outputs = function(*leaves)
        self.inputs, self.outputs = _edges(leaves), _edges(outputs)
        return [x.detach() for x in outputs]

    def gradients(self, *d_outputs):
        """Of each input, or None, from those of the results."""
        outputs = [edge for edge in self.outputs if edge]
        inputs = [edge for edge in self.inputs if edge]
        if not inputs:
            return [None] * len(self.inputs)
        d_outputs = [x for x, edge in zip(d_outputs, self.outputs, strict=True) if edge]
        options = {"retain_graph": True, "allow_unused": True}  # the graph holds numbers alone
        d_inputs = iter(torch.autograd.grad(outputs, inputs, d_outputs, **options))
        return [next(d_inputs) if edge else None for edge in self.inputs]


class Beginning(torch.autograd.Function):
    """x, where a graph begins and gradients end, as at a leaf; but a leaf's graph would hold x."""

    @staticmethod
    def forward(ctx, root, x):
        return x.detach()


def _edges(tensors):
    """Where gradients enter the graph or leave it; None of what has none."""
    return [get_gradient_edge(x) if x is not None and x.requires_grad else None for x in tensors]
