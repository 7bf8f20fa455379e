"""CUDA graphs without a GPU: `Graphs` stands for `torch.cuda`, tensors lie in the CPU's memory.

While a graph is captured nothing is computed: each operator of torch is noted with the memory that
it reads and writes, and its result is NaN. A replay runs the operators again, in order, on the same
memory. What CUDA forbids in a capture is a `CaptureFault` here.
"""

from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .faults import KernelFault

WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")  # the host wants to know a number


class CaptureFault(KernelFault):
    """What a graph cannot capture, or was used in another way than graphs can be."""


class Graphs:
    """The part of `torch.cuda` that captures: `CUDAGraph`, `graph`, streams and `synchronize`.

    Attributes:
        capturing: whether a graph is being captured.
        captured: the graphs, in the order of their captures.
    """

    def __init__(self):
        self.capturing, self.captured = False, []

    def CUDAGraph(self, keep_graph=False):
        return Graph(self)

    @contextmanager
    def graph(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        """Captures what happens inside."""
        if not isinstance(cuda_graph, Graph):
            raise CaptureFault(f"graph(…) takes a CUDAGraph(), and gets {cuda_graph!r}")
        if self.capturing:
            raise CaptureFault("a capture inside a capture")
        self.capturing = True
        try:
            with _Capture(cuda_graph):
                yield
        finally:
            self.capturing = False
        self.captured.append(cuda_graph)

    def synchronize(self, device=None):
        if self.capturing:
            raise CaptureFault("synchronize() inside a capture: nothing runs to wait for")

    def Stream(self, *args, **options):
        return _Stream()

    def current_stream(self, device=None):
        return _Stream()

    def stream(self, stream):
        return nullcontext(stream)

    def graph_pool_handle(self):
        return 0

    def is_available(self):
        return True

    def is_current_stream_capturing(self):
        return self.capturing


class Graph:
    """A captured graph.

    Attributes:
        operators: (function, arguments, options, its new tensors) of each.
        memory: addresses of all that they write.
        replays: how many there were.
    """

    def __init__(self, cuda):
        self.cuda, self.operators, self.memory, self.replays = cuda, [], set(), 0

    def replay(self):
        if self not in self.cuda.captured:
            raise CaptureFault("replay() of a graph that was not captured")
        if self.cuda.capturing:
            raise CaptureFault("replay() inside a capture")
        self.replays += 1
        for function, args, options, written in self.operators:
            results = function(*args, **options)
            for x, y in zip(written, tree_leaves(results), strict=False):
                x.copy_(y)

    def reset(self):
        self.operators.clear()


class _Stream:
    def wait_stream(self, stream):
        """Streams follow each other here anyway."""

    def synchronize(self):
        """Nothing is left to wait for."""


class _Capture(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        options, name = kwargs or {}, function._schema.name.removeprefix("aten::")
        if name in WAITS:
            raise CaptureFault(
                f"{name} inside a capture: the host would wait for a value that is not computed"
            )
        changed = _changed(function, args, options)
        before = [x.clone() for x in changed]
        result = function(*args, **options)
        for x, old in zip(changed, before, strict=True):
            x.copy_(old)
        memory = {address(x) for x in tree_leaves((args, options)) if isinstance(x, torch.Tensor)}
        outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        written = [x for x in outputs if address(x) not in memory]  # a view is no new memory
        for x in written:
            if x.is_floating_point():
                x.fill_(torch.nan)
        if name.startswith(("empty", "new_empty")):
            return result  # memory, and no work
        if written or changed:
            self.graph.operators.append((function, args, options, written))
            self.graph.memory |= {address(x) for x in (*written, *changed)}
        return result


def _changed(function, args, options):
    """The arguments that an operator writes into."""
    parameters = function._schema.arguments
    arguments = dict(zip((p.name for p in parameters), args, strict=False)) | options
    names = [p.name for p in parameters if p.alias_info and p.alias_info.is_write]
    return [x for name in names for x in tree_leaves(arguments.get(name)) if x is not None]


def address(x):
    """Where the memory of a tensor begins; views have that of what they are views of."""
    return x.untyped_storage().data_ptr()
