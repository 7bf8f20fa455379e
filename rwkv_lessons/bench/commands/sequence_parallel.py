"""One sequence on two GPUs: the whole call, forward and both passes, and each of its steps.

    one GPU        the first rank alone has all tokens; the other waits
    two GPUs       `sequence_parallel`, half of the tokens each
    uneven parts   the first rank has more tokens, as it makes no matrices: only if RWKV-7's ranks
                   correct, as on a CPU
    states, gather, main pass
                   steps of RWKV-6's forward pass where the entry state comes first, each alone
    states and main pass, gather
                   those of RWKV-7, whose states and main pass are parts of one call
    main pass, summary, gather, correction
                   those of ranks that correct
    send/recv      the state from one rank to the other, instead of the gather

Ranks start together, and the slower one's time counts. Started without torchrun, it starts it.
"""

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from rwkv_lessons import wkv6, wkv7
from rwkv_lessons.bench.commands.run import (
    asked_shapes,
    check_name,
    choose,
    keep,
    refuse_a_part,
)
from rwkv_lessons.bench.show import console, rows_table
from rwkv_lessons.bench.taken import methods_taken
from rwkv_lessons.distributed import (
    maps,
    rwkv6,
    rwkv7,
    sequence_parallel,
    split_tokens,
    states_first,
)
from rwkv_lessons.distributed.parallel import ParallelCall
from rwkv_lessons.distributed.pieces import pieces_of
from rwkv_lessons.inputs import rwkv6_inputs, rwkv7_inputs
from rwkv_lessons.operations.distributed import SEQUENCE_PARALLEL
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.records.provenance import provenance
from rwkv_lessons.records.schema import Measurement, code

NAME, RANKS = "sequence-parallel", 2
TIMING = "CUDA events, ranks start together, the slower one; median"
SOURCES = ("rwkv_lessons/distributed/__init__.py::sequence_parallel",)
# Tokens: of more, one GPU has no room for both passes of RWKV-7.
MOST = {"wkv7": 131072}
TENSORS = 10  # of all tokens that a GPU holds at once to compare o: inputs, parts of them, results
TEXT = 131072  # tokens that are made; a longer sequence is these again and again
# How many times the second rank's tokens the first one gets of RWKV-7: it has no matrices to make,
# which others do before their main pass. RWKV-6's ranks differ after it, where all wait already.
UNEVEN = 1.35


def command(options):
    """`python -m rwkv_lessons.bench sequence-parallel`."""
    choose(dict.fromkeys(CASES), options.methods)
    for gpus, _, tokens, *_ in asked_shapes(options, SEQUENCE_PARALLEL):
        if gpus != RANKS:
            raise ValueError(f"--shape: GPUs must be {RANKS}, got {gpus}")
        if tokens < 2 * RANKS:  # of a single token, o has no gradient of w
            least = f"{2 * RANKS}, two tokens a GPU"
            raise ValueError(f"--shape: T must be at least {least}, got {tokens}")
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= RANKS
    if not cuda and not options.quick:
        raise ValueError(f"needs {RANKS} NVIDIA GPUs: add --quick for small parts on the CPU")
    if not cuda and options.record is not None:
        raise ValueError("no two NVIDIA GPUs here: times of a CPU are not recorded")
    refuse_a_part(options, options.shape, options.methods, options.quick)
    check_name(options, NAME)
    if "RANK" not in os.environ:
        return start()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    try:
        _measure_all(options, device)
    finally:
        dist.destroy_process_group()


def start():
    """This command again, in as many processes as there are ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [f"--nproc-per-node={RANKS}", "-m", "rwkv_lessons.bench", *sys.argv[1:]]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    process = subprocess.run([*torchrun, *command], cwd=ROOT, env=os.environ | threads)
    if process.returncode:
        sys.exit(process.returncode)


def _measure_all(options, device):
    first = dist.get_rank() == 0
    origin = provenance(options.commit) if options.record is not None and first else None
    rows = []
    for shape in asked_shapes(options, SEQUENCE_PARALLEL):
        for case in choose(dict.fromkeys(CASES), options.methods):
            operation = case.split(",")[0]
            if shape[2] > MOST.get(operation, shape[2]):
                continue
            if has_room(shape, device):
                rows += measure(case, shape, device, 3 if options.quick else 8)
            else:
                problem = {"problem": "out of memory"}
                rows.append(Measurement(f"{case}, one GPU", tuple(shape), "bfloat16", **problem))
    if first:
        console().print(rows_table(rows, SEQUENCE_PARALLEL.letters))
        keep(options, NAME, origin and replace(origin, timing=TIMING), rows)


def has_room(shape, device):
    """Whether a GPU holds the tensors of a comparison, in bfloat16; a CPU has small parts."""
    _, B, T, H, N = shape
    if device.type != "cuda":
        return True
    return TENSORS * 2 * B * T * H * N < torch.cuda.get_device_properties(device).total_memory


OPERATIONS = {
    "wkv6": (rwkv6, wkv6.wkv6),
    "wkv7": (rwkv7, wkv7.wkv7),
}
CASES = [f"{name}{more}" for name in OPERATIONS for more in ("", ", nothing decays")]


def measure(case, shape, device, times):
    """The rows of a case: those of the first rank hold the slower one's times."""
    _, B, T, H, N = shape
    family, operation = OPERATIONS[case.split(",")[0]]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    inputs = make_inputs(family, B, T, H, N, dtype, device, "decays" in case)
    rank, rows = dist.get_rank(), []
    timer = Timer(device, times)

    def row(split, ms, note=None, extra=None):
        common = {"shape": tuple(shape), "dtype": str(dtype).split(".")[-1], "n": times}
        common |= code_fields
        low, middle, high = ms
        rows.append(
            Measurement(
                f"{case}, {split}",
                median_ms=middle,
                p20_ms=low,
                p80_ms=high,
                note=note,
                extra_bytes=extra,
                **common,
            )  # fmt: skip
        )
        if rank == 0:
            console().print(f"{case}, {split}, T={T}: {middle:.3f} ms {note or ''}")

    mix, shared = sequence_parallel(operation), {"two GPUs": 1.0}
    half = [x if x.ndim == 2 else x[:, : T // RANKS].contiguous() for x in inputs]
    with methods_taken() as methods_called:
        for function in (operation, mix):
            training(function, half)()
            with torch.no_grad():
                function(*half)
    code_fields = code(*SOURCES, *sorted(methods_called))
    call = ParallelCall(operation, family, None, 60.0, pieces_of(T // RANKS, rank, None, None), {})
    if family is rwkv7 and not states_first.way_of(call, half, None):
        shared["uneven parts"] = UNEVEN
    parts = {split: split_tokens(T, RANKS, ratio) for split, ratio in shared.items()}

    def of_this_rank(split):
        start = sum(parts[split][:rank])
        span = slice(start, start + parts[split][rank])
        return span, [x if x.ndim == 2 else x[:, span].contiguous() for x in inputs]

    with torch.no_grad():
        alone, extra = timer(lambda: operation(*inputs) if rank == 0 else None)
        row("one GPU", alone, extra=extra)
        whole = operation(*inputs)[0]
        for split in shared:
            span, part = of_this_rank(split)
            ms, extra = timer(lambda part=part: mix(*part))
            error = largest(relative(mix(*part)[0], whole[:, span]), device)
            row(split, ms, f"{alone[1] / ms[1]:.2f}×, from one GPU {error:.1e}", extra)
            if split == "two GPUs":
                steps(row, timer, family, operation, part, device)
        del whole, part

    run, expected, alone = training(operation, inputs), None, None
    try:
        alone, extra = timer(lambda: run() if rank == 0 else None)
        expected = run() if rank == 0 else None
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    if largest(float(alone is None), device):
        rows.append(Measurement(f"{case}, one GPU, both passes", tuple(shape), "bfloat16",
                                problem="out of memory"))  # fmt: skip
        alone = expected = None
    else:
        row("one GPU, both passes", alone, extra=extra)
    for split in shared:
        _, part = of_this_rank(split)
        run = training(mix, part)
        ms, extra = timer(run)
        note = "one GPU has no room for it"
        if alone:
            error = against_one(run(), expected, parts[split], device)
            note = f"{alone[1] / ms[1]:.2f}×, from one GPU {error:.1e}"
        row(f"{split}, both passes", ms, note, extra)
    return rows


def steps(row, timer, family, operation, part, device):
    """Each step of the forward pass by itself, without gradients."""
    rank, tokens = dist.get_rank(), part[0].shape[1]
    call = ParallelCall(operation, family, None, 60.0, pieces_of(tokens, rank, None, None), {})
    with torch.no_grad():
        if way := states_first.way_of(call, part, None):
            return states_before(row, timer, way, call, part)
        row("main pass", timer(lambda: operation(*part))[0])
        o, B = operation(*part)

        def summary():
            carry = family.Carry(call, part, tokens)
            return carry, carry.across()

        row("summary", timer(lambda: summary() if rank else None)[0])
        carry, A = summary()
        packed_map, V = maps.pack(A, B), B.shape[-1]

        def gather():
            As, Bs = maps.unpack(call.gathered(packed_map), V)
            return maps.entry_state(As, Bs, 1)

        megabytes = packed_map.numel() * packed_map.element_size() / 1e6
        row("gather", timer(gather)[0], f"{megabytes:.2f} MB a rank")
        row("send/recv", timer(lambda: hand_over(B, rank))[0], "the state alone")
        E, reach = gather(), largest(float(carry.reach if rank else 0), device)
        note = f"the entry state reaches {reach:.0f} of {tokens} tokens"
        row("correction", timer(lambda: carry.correct(o, E) if rank else None)[0], note)


def states_before(row, timer, way, call, part):
    """The maps of all segments; the gather; and the main pass that starts from the right state.

    Of RWKV-7 the first and the last are parts of one call: both together.
    """
    from rwkv_lessons.wkv6.chunked import forward

    r, v = part[0], part[call.family.V]
    start = torch.zeros(r.shape[0], *r.shape[2:], v.shape[-1], device=r.device)
    packed_maps = []
    if call.family is rwkv6:
        states = lambda: states_first.segment_maps(*part[1:4], False)  # noqa: E731
        row("states", timer(lambda: packed_maps.append(states_first.rank_map(states(), None)))[0])
        segment_maps = states()
        run = lambda: forward.run_forward(*part, start, None, 1.0, False, None, segment_maps)  # noqa: E731
        row("main pass", timer(run)[0])
    else:
        run = lambda: way.forward(part, start, call, False, packed_maps.append)  # noqa: E731
        row("states and main pass", timer(run)[0])
    map_of_rank = packed_maps[-1]
    size = f"{map_of_rank.numel() * map_of_rank.element_size() / 1e6:.2f} MB a rank"
    row("gather", timer(lambda: call.gathered(map_of_rank))[0], size)
    row("send/recv", timer(lambda: hand_over(start, call.rank))[0], "the state alone")


def hand_over(B, rank):
    if rank == 0:
        dist.send(B, 1)
    else:
        dist.recv(torch.empty_like(B), 0)


def make_inputs(family, B, T, H, N, dtype, device, keeps):
    """A model's inputs on every rank; `keeps`: with a decay of 1 at every token."""
    maker = rwkv6_inputs if family is rwkv6 else rwkv7_inputs
    tensors = maker(B, min(T, TEXT), H, N, dtype=dtype, device=device)
    copies = -(-T // TEXT)
    out = [x if x.ndim == 2 or copies == 1 else x.repeat(1, copies, 1, 1)[:, :T] for x in tensors]
    if keeps:
        w, k = (out[n] for n in ((3, 1) if family is rwkv6 else (1, 2)))
        w.zero_()
        k.mul_(T**-0.5)  # states then stay as large as with a decay
    return out


def training(function, inputs):
    """Both passes of `function`: () → o and the gradients of all inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    do = torch.ones_like(leaves[2])

    def run():
        o, _ = function(*leaves)
        return o.detach(), *torch.autograd.grad(o, leaves, do)

    return run


class Timer:
    """Milliseconds of a function that every rank calls: 20 %, median, 80 %; and its extra bytes."""

    def __init__(self, device, times):
        self.device, self.times = device, times

    def __call__(self, function):
        for _ in range(2):
            function()
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        durations = sorted(self._once(function) for _ in range(self.times))
        extra = torch.cuda.max_memory_allocated() - before if cuda else None
        low, *_, high = statistics.quantiles(durations, n=5, method="inclusive")
        return (low, statistics.median(durations), high), extra

    def _once(self, function):
        token = torch.zeros(1, device=self.device)
        dist.all_reduce(token)  # ranks meet, on the GPU too
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            ms = begin.elapsed_time(end)
        else:
            began = time.perf_counter()
            function()
            ms = (time.perf_counter() - began) * 1e3
        return largest(ms, self.device)


def largest(x, device):
    """The largest of all ranks' numbers."""
    x = torch.tensor([x], device=device, dtype=torch.float32)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.item()


def relative(x, y):
    """‖x - y‖ / ‖y‖, without copies of all of it in float32."""
    return float((x - y).norm(dtype=torch.float32) / y.norm(dtype=torch.float32))


def against_one(results, expected, parts, device):
    """The largest relative difference of o and gradients, compared where one GPU has them."""
    rank, worst = dist.get_rank(), 0.0
    for n, x in enumerate(results):
        if x.ndim == 2:
            dist.all_reduce(x)
            worst = max(worst, relative(x, expected[n]) if rank == 0 else 0.0)
            continue
        if rank == 0:
            worst = max(worst, relative(x, expected[n][:, : parts[0]]))
            other = x.new_empty(expected[n][:, parts[0] :].shape)
            dist.recv(other, 1)
            worst = max(worst, relative(other, expected[n][:, parts[0] :]))
        else:
            dist.send(x.contiguous(), 0)
    return largest(worst, device)
