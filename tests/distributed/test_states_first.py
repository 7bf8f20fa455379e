"""Ranks whose entry state comes before their main pass, in the interpreter or on a GPU.

They run one after the other in this process: forward twice, as the first time nobody has the maps
of later ranks, and backward from the last to the first.
"""

import pytest
import torch

pytest.importorskip("triton")
from support.gluon_on_cpu import Mutable  # noqa: E402
from support.rank_cases import Case, last_rank_of  # noqa: E402
from support.tensor_core import tensor_core  # noqa: E402, F401
from support.wkv6_chunks import fresh_tiles, in_segments  # noqa: E402, F401
from support.wkv7_fused import KERNELS, simulator  # noqa: E402

from rwkv_lessons.distributed import parallel, rwkv6, rwkv7, states_first  # noqa: E402
from rwkv_lessons.distributed.fold import folded  # noqa: E402
from rwkv_lessons.distributed.parallel import ParallelCall, SequenceParallel  # noqa: E402
from rwkv_lessons.distributed.pieces import pieces_of  # noqa: E402
from rwkv_lessons.distributed.states_first import (  # noqa: E402
    FusedRwkv7,
    StatesOfRwkv6,
    StatesOfRwkv7,
)
from rwkv_lessons.runtime import launch_tiles  # noqa: E402
from rwkv_lessons.wkv6 import wkv6, wkv6_chunked, wkv6_doubling, wkv6_recurrent  # noqa: E402
from rwkv_lessons.wkv6.chunked import backward  # noqa: E402
from rwkv_lessons.wkv6.chunked.hopper import segments, tiles  # noqa: E402
from rwkv_lessons.wkv7 import (  # noqa: E402
    wkv7,
    wkv7_chunked,
    wkv7_fused,
    wkv7_recurrent,
    wkv7_wy,
)
from rwkv_lessons.wkv7.chunked import kept  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Float32 sums, on a GPU of three products of TF32 each; else the rounding of o and of gradients.
LIMITS = {torch.float32: 5e-6 if DEVICE == "cpu" else 2e-5, torch.bfloat16: 6e-3}


class Rank(ParallelCall):
    """A rank of `group` ranks, whose number is `timeout`."""

    @property
    def rank(self):
        return self.timeout

    @property
    def is_last(self):
        return self.rank == self.group - 1


class Gathered:
    """Stands for `gathering`: what the ranks have sent so far, and zeros of those that have not."""

    def __init__(self):
        self.sent = {}

    def __call__(self, x, ranks, rank):
        self.sent[x.shape, rank] = x
        found = [self.sent.get((x.shape, n), torch.zeros_like(x)) for n in range(ranks)]
        return lambda: torch.stack(found)


def names(family):
    return ["o", "s1", *("d" + x for x in family.INPUTS), "ds0"]


def draw_7(T, H, K, V, decay, dtype, B=1):
    """As `draw`, of RWKV-7."""
    (r, k, v, w, _), do, s0, ds1 = draw(T, H, K, V, decay, torch.float32, False, B)
    kappa = torch.nn.functional.normalize(torch.randn_like(r), dim=-1)
    given = r, w, k, v, -kappa, kappa * torch.rand_like(r)
    return [x.to(dtype) for x in given], do.to(dtype), s0, ds1


def draw(T, H, K, V, decay, dtype, raw, B=1):
    g = torch.Generator().manual_seed(T + K)
    new = lambda *size: torch.randn(*size, generator=g)  # noqa: E731
    w = 2 * new(B, T, H, K) - 3
    if not raw:
        w = -w.exp() if decay is None else torch.full_like(w, decay)
    tokens = new(B, T, H, K), new(B, T, H, K), new(B, T, H, V), w
    do, states = new(B, T, H, V), (new(B, H, K, V), new(B, H, K, V))
    given = [x.to(DEVICE, dtype) for x in (*tokens, new(H, K), do)]
    return given[:5], given[5], *(x.to(DEVICE) for x in states)


def on_ranks(way, operation, family, parts, given, do, s0, ds1, options, packed=None):
    """`names` of all ranks, put together; packed: where sequences end.

    way: see states_first; or one for each rank, None for those that correct.
    """
    ways = way if isinstance(way, list) else [way] * len(parts)
    ends, ranks = torch.tensor(parts).cumsum(0).tolist(), len(parts)
    case = Case("", parts, cu_seqlens=packed)
    for _ in range(2):
        runs = []
        for n, (T, end) in enumerate(zip(parts, ends, strict=True)):
            pieces = pieces_of(T, n, packed and list(packed), parts)
            call = Rank(operation, family, ranks, n, pieces, options)
            mine = [x if x.ndim == 2 else x[:, end - T : end] for x in given]
            leaves = [x.clone().requires_grad_() for x in (*mine, s0)]
            if ways[n]:
                results = states_first.StatesFirst.apply(ways[n], call, leaves[-1], *leaves[:-1])
            else:
                results = SequenceParallel.apply(call, leaves[-1], *leaves[:-1])
            o, s1 = results
            runs.append((o, s1, leaves, do[:, end - T : end]))
    found = []
    for n in reversed(range(ranks)):
        o, s1, leaves, mine = runs[n]
        last = ds1 * last_rank_of(case, n).to(DEVICE)
        found.insert(0, torch.autograd.grad([o, s1], leaves, [mine, last]))
    put = [
        torch.cat(x, 1) if y.ndim == 4 else sum(z.float() for z in x)
        for y, *x in zip(given, *found, strict=False)
    ]
    o = torch.cat([x[0] for x in runs], 1).detach()
    s1 = sum(x[1].detach() * last_rank_of(case, n).to(DEVICE) for n, x in enumerate(runs))
    return o, s1, *put, sum(x[-1] for x in found)


@pytest.mark.parametrize(
    ("dtype", "decay", "raw", "scale", "parts"),
    [
        (torch.float32, None, True, 0.5, (65, 70, 66)),
        (torch.float32, 0.0, False, 1.0, (65, 66)),
        (torch.bfloat16, None, False, 1.0, (66, 70)),
    ],
)
def test_ranks_together_are_one_process(
    dtype, decay, raw, scale, parts, monkeypatch, tensor_core  # noqa: F811
):  # fmt: skip
    monkeypatch.setattr(states_first, "gathering", Gathered())
    in_segments(monkeypatch, 3)
    monkeypatch.setattr(backward, "MIN_CHUNKS_PER_SEGMENT", 2)
    backward.plan.cache_clear()
    given, do, s0, ds1 = draw(sum(parts), 1, 6, 5, decay, dtype, raw)
    options = {"raw_decay": raw, "scale": scale}
    got = on_ranks(StatesOfRwkv6, wkv6_chunked, rwkv6, parts, given, do, s0, ds1, options)
    backward.plan.cache_clear()
    compare(rwkv6, wkv6_doubling, got, given, do, s0, ds1, options)


def compare(family, reference, got, given, do, s0, ds1, options):
    leaves = [x.double().requires_grad_() for x in (*given, s0)]
    o, s1 = reference(*leaves, **options)
    want = torch.autograd.grad([o, s1], leaves, [do.double(), ds1.double()])
    for name, x, y in zip(names(family), got, (o, s1, *want), strict=True):
        error = float((x.double() - y).detach().norm() / y.detach().norm())
        assert error < LIMITS[given[0].dtype], (name, error)


@pytest.mark.parametrize(
    ("dtype", "decay", "scale", "parts"),
    [
        (torch.float32, None, 0.5, (33, 17, 18)),
        (torch.bfloat16, 0.0, 1.0, (17, 33)),
    ],
)
def test_ranks_of_rwkv7_together_are_one_process(
    dtype, decay, scale, parts, monkeypatch, tensor_core  # noqa: F811
):  # fmt: skip
    monkeypatch.setattr(states_first, "gathering", Gathered())
    monkeypatch.setattr(kept, "MIN_CHUNKS", 1)
    monkeypatch.setattr(kept, "MIN_SEGMENTS", 1)
    monkeypatch.setattr(kept, "MAX_SEGMENTS", 2)
    kept.tiles_for.cache_clear()
    given, do, s0, ds1 = draw_7(sum(parts), 1, 16, 16, decay, dtype)
    options = {"scale": scale}
    got = on_ranks(StatesOfRwkv7, wkv7_chunked, rwkv7, parts, given, do, s0, ds1, options)
    kept.tiles_for.cache_clear()
    compare(rwkv7, wkv7_wy, got, given, do, s0, ds1, options)


@pytest.mark.parametrize(
    ("segments", "parts", "decay", "B"),
    [
        (2, (128, 256, 128), None, 1),
        (2, (128, 128), -0.002, 2),
        (1, (64, 33, 128), -0.002, 1),  # the second rank has no whole tiles, and corrects
        (1, (30, 128, 21), -0.002, 1),
    ],
)
def test_ranks_of_the_fused_rwkv7_together_are_one_process(segments, parts, decay, B, monkeypatch):
    """On a CPU the kernels are simulated. Where hardly anything decays, all of it enters."""
    gathered = Gathered()
    for module in (states_first, parallel):
        monkeypatch.setattr(module, "gathering", gathered)
    for module, launch, name in KERNELS:
        monkeypatch.setattr(module, "segments_for", lambda *_: segments, raising=False)
        if DEVICE == "cpu":
            monkeypatch.setattr(module, launch, simulator(Mutable(getattr(module, name))))
    given, do, s0, ds1 = draw_7(sum(parts), 1, 64, 64, decay, torch.bfloat16, B)
    options = {"scale": 0.5}
    ways = [FusedRwkv7 if T % 64 == 0 else None for T in parts]
    got = on_ranks(ways, wkv7_fused, rwkv7, parts, given, do, s0, ds1, options)
    compare(rwkv7, wkv7_wy, got, given, do, s0, ds1, options)


def test_segments_fold_into_one_map():
    S, G, H, K, V = 2, 3, 2, 5, 70
    g = torch.Generator().manual_seed(0)
    states, start = (torch.randn(S, *x, H, K, V, generator=g).to(DEVICE) for x in ([G], []))
    decays = -torch.rand(S, G, H, K, generator=g).to(DEVICE)
    A, B = torch.ones_like(decays[:, 0]), start
    for n in range(G):
        A, B = A * decays[:, n].exp2(), B * decays[:, n].exp2()[..., None] + states[:, n]
    found = folded(states, decays, start, H)
    assert torch.allclose(found[..., 0], A) and torch.allclose(found[..., 1:], B, atol=1e-6)
    swapped = [x.transpose(1, 2).contiguous() for x in (states.flip(1), decays.flip(1))]
    assert torch.equal(folded(*swapped, start, H, True, True, False), found[..., 1:])


class OnGpu(torch.Tensor):
    """A tensor without a GPU that says it is on one."""

    is_cuda = True


def test_only_what_the_chunked_kernels_cut_gets_its_state_first(monkeypatch):
    from rwkv_lessons.runtime import devices
    from rwkv_lessons.wkv6.chunked import forward
    from rwkv_lessons.wkv7.chunked import forward as forward_7

    monkeypatch.setattr(devices, "gpu_of", lambda device: devices.H200)
    for module in (forward, forward_7):
        monkeypatch.setattr(module, "distrusted", lambda _: False)

    def suits(B, T, H, N=64, dtype=torch.bfloat16, operation=wkv6, packed=None):
        new = lambda *size: torch.zeros(size, dtype=dtype).as_subclass(OnGpu)  # noqa: E731
        family = rwkv7 if "wkv7" in operation.__name__ else rwkv6
        sizes = [(B, T, H, N)] * (4 if family is rwkv6 else 6)
        inputs = [new(*size) for size in (*sizes, *([(H, N)] if family is rwkv6 else []))]
        pieces = pieces_of(T, 0, packed, [T, T])
        return states_first.way_of(Rank(operation, family, 2, 0, pieces, {}), inputs, None)

    assert suits(1, 2048, 4)
    assert suits(1, 700, 4)  # one segment
    assert suits(1, 2048, 200)  # heads enough for the GPU
    assert not suits(1, 2048, 4, dtype=torch.float64)
    assert suits(1, 2048, 4, packed=[0, 5, 4096])
    assert not suits(1, 2048, 4, packed=[0, 5, 4096], dtype=torch.float32)
    assert not suits(1, 2048, 4, operation=wkv6_recurrent)
    assert suits(1, 1984, 4, operation=wkv7) is StatesOfRwkv7
    assert suits(1, 2048, 4, operation=wkv7) is FusedRwkv7
    assert suits(2, 4160, 133, operation=wkv7) is FusedRwkv7
    assert suits(1, 64, 4, operation=wkv7_fused) is FusedRwkv7
    assert suits(1, 4100, 4, operation=wkv7) is StatesOfRwkv7  # no whole tiles
    assert suits(1, 4096, 4, operation=wkv7_chunked) is StatesOfRwkv7
    assert suits(1, 4096, 4, N=128, operation=wkv7) is StatesOfRwkv7
    assert not suits(1, 2048, 4, operation=wkv7, packed=[0, 5, 4096])
    assert not suits(1, 300, 4, operation=wkv7)
    assert not suits(1, 2048, 4, operation=wkv7_recurrent)


def test_packed_sequences_on_ranks_are_those_of_one_process(monkeypatch, tensor_core):  # noqa: F811
    """The states come from Hopper's kernel, simulated; the main pass is Triton's interpreter's."""
    kernel = Mutable(segments.wkv6_segment_states_kernel)

    def launch(_, grid, warps, tensors, numbers, constants):
        kernel[grid](*tensors, *numbers, *constants, num_warps=warps)

    monkeypatch.setattr(launch_tiles, "launch_tiles", launch)
    monkeypatch.setattr(tiles, "takes_tiles", lambda *_: True)
    monkeypatch.setattr(states_first, "TOKENS_OF_SEGMENT", 16)
    monkeypatch.setattr(states_first, "gathering", Gathered())
    parts, ends = (100, 140, 36), (0, 17, 90, 250, 259, 276)
    (r, k, v, w, u), do, _, _ = draw(276, 1, 64, 64, None, torch.bfloat16, False)
    s0, ds1 = (torch.randn(5, 1, 64, 64) for _ in range(2))
    options = {"scale": 0.5}
    given = [r, k, v, w, u]
    got = on_ranks(StatesOfRwkv6, wkv6_chunked, rwkv6, parts, given, do, s0, ds1, options, ends)
    options["cu_seqlens"] = torch.tensor(ends)
    compare(rwkv6, wkv6_doubling, got, given, do, s0, ds1, options)
