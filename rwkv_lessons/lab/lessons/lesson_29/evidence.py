"""The evidence for a Triton kernel that mixes one token of WKV-6 into a state, and its use."""

from contextlib import contextmanager
from unittest import mock

import torch
import triton

from rwkv_lessons.models import rwkv6

from ...evidence.launches import Launch, results
from ...evidence.triton import Case, answer, gpu, machine_code, traffic
from ...evidence.wkv6_triton import MANY_HEADS, Size, wkv6_launch

CASES = (
    ("one head, no state", "by hand", Size((1, 1, 1, 4, 4), states=False)),
    ("a state before the token", "state in", Size((1, 1, 1, 4, 4))),
    ("more values than fit in a block", "blocks", Size((1, 1, 1, 4, 8))),
    ("two heads", "head", Size((1, 1, 2, 8, 8))),
    ("batch rows and heads", "head", Size((3, 1, 2, 8, 8))),
    ("10 keys, 7 values", "mask", Size((2, 1, 2, 10, 7))),
    ("strong decays", "decay", Size((1, 1, 1, 4, 4), decay="strong")),
    ("decay 0 forgets, decay 1 keeps", "decay", Size((1, 1, 1, 8, 8), decay="edge")),
    MANY_HEADS,
    ("520 values", "many", Size((1, 1, 1, 3, 520))),
    ("the order of the programs does not matter", "programs", Size((2, 1, 2, 6, 9))),
)
OWN_BLOCKS, COMPILED_SIZE = Size((2, 1, 3, 40, 70)), Size((2, 1, 4, 100, 100))


def one_token_kernel(launch, names, writes, *claims, limits=(), counted):
    """All the evidence for such a kernel.

    Args:
        launch, names, writes: as for `wkv6_launch`; T is 1.
        claims: about the machine code.
        limits: of the traffic, at the size `counted`.
    """

    def later(size, **blocks):
        return lambda: wkv6_launch(launch, names, writes, size, **blocks)

    def small(size):
        return later(size, BK=triton.next_power_of_2(size.shape[3]), BV=4)

    few = [Case(name, symptom, small(size), symptom == "programs") for name, symptom, size in CASES]
    whole = Case("the lesson's own blocks", "own blocks", later(OWN_BLOCKS))
    return (
        answer(*few, whole),
        traffic(small(counted), *limits),
        machine_code(later(COMPILED_SIZE), *claims),
        gpu(later(COMPILED_SIZE)),
    )


def mixes(kernel, launch):
    """A function called as `wkv6` is, for one token: `kernel` on the GPU, or in the interpreter.

    Args:
        kernel, launch: of lesson 29.
    """

    def mix(r, k, v, w, u, s0=None, *, raw_decay=False):
        B, T, H, K = r.shape
        V = v.shape[-1]
        w = -w.float().exp() if raw_decay else w
        s0 = r.new_zeros(B, H, K, V) if s0 is None else s0
        grid, constants = launch(B, T, H, K, V)
        tensors = dict(zip("rkvwu", (r, k, v, w, u), strict=True)) | {"s0": s0}
        tensors = {name: x.detach().float().contiguous() for name, x in tensors.items()}
        if r.is_cuda:
            o, s1 = torch.empty_like(tensors["v"]), torch.empty_like(tensors["s0"])
            kernel[grid](*tensors.values(), o, s1, **constants)
            return o.to(r.dtype), s1
        shapes = {"o": (B, T, H, V), "s1": (B, H, K, V)}
        zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
        outputs = results(kernel, Launch(grid, tensors, shapes, zeros, constants))
        return outputs["o"].float(), outputs["s1"].float()

    return mix


@contextmanager
def in_the_model(shifted, rates, learns):
    """Within it, `rwkv_lessons.models.rwkv6` uses these functions instead of its own."""

    def shifted_from(x, before):
        return shifted(x, torch.zeros_like(x[:, 0]) if before is None else before)

    functions = {"shifted": shifted_from, "rates": rates, "learns": learns}
    with mock.patch.multiple(rwkv6, **functions):
        yield
