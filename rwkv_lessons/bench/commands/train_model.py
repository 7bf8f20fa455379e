"""How fast a whole model learns: RWKV-6 of some 170 million parameters, one step after another.

The same model, the same characters and the same seeds, with the recurrence computed by

    wkv6         this library
    plain torch  `wkv6_doubling`: matrix products in torch, without a kernel of ours
    fla chunk    flash-linear-attention's kernel, if it is asked for: it tries configurations first,
                 for a minute or more

Rows: a step, and "…, the recurrence": forward and backward of one layer's, times the layers.
"""

import statistics
import time
from functools import partial
from importlib.util import find_spec

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import choose, time_rows
from rwkv_lessons.bench.measure import one_line
from rwkv_lessons.bench.peers import fla_wkv6
from rwkv_lessons.bench.show import console
from rwkv_lessons.bench.taken import code_of
from rwkv_lessons.models.rwkv6 import Model, Plan, Sizes, train
from rwkv_lessons.models.tasks import REVERSAL_VOCABULARY, alphabet, passages, reversal
from rwkv_lessons.operations.train import TRAIN
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.wkv6 import wkv6, wkv6_doubling

STEPS, WARM_UP = 24, 4  # of a method; the first ones compile
TIMING = f"wall clock of single steps, median of {STEPS - WARM_UP}; recurrence: CUDA events"
SOURCES = ("rwkv_lessons/wkv6/__init__.py::wkv6",)
TASKS = ("text", "synthetic")


METHODS = {"wkv6": wkv6, "plain torch": wkv6_doubling}
PEERS = {"fla chunk": fla_wkv6}


def command(options):
    """`python -m rwkv_lessons.bench train`."""
    chosen = choose(METHODS | PEERS, options.methods or list(METHODS))

    def rows(shape, _, device):
        for method, mix in chosen.items():
            if method == "fla chunk" and not find_spec("fla"):
                console().print("fla chunk: flash-linear-attention is not installed")
                continue
            for task in TASKS if method == "wkv6" else TASKS[:1]:
                yield from measure(method, mix, task, shape, device)

    time_rows(options, TRAIN, rows, TIMING)


def measure(method, mix, task, shape, device):
    """The rows of a step and of its recurrence, which `mix` computes."""
    B, T, layers, C = shape
    dtype = torch.bfloat16 if device.type == "cuda" else None
    ours = method == "wkv6"
    common = {"shape": tuple(shape), "dtype": "bfloat16" if dtype else "float32"}
    common |= code(*SOURCES) if ours else {}
    name = method if task == "text" else f"{method}, {task}"
    try:
        model = make_model(shape, task, device, mix)
        steps = STEPS if device.type == "cuda" else 3
        took, losses, peak = run_steps(model, partial(batch, task, B, T, device), steps, dtype)
        run = recurrence_of(model, shape, device, dtype)
        recurrence = layers * timing.device_times(run, device, 200).median_ms
        common |= code_of(SOURCES, run) if ours else {}
    except torch.OutOfMemoryError:
        return [Measurement(name, **common, problem="out of memory")]
    except Exception as problem:  # of one method: the others go on
        return [Measurement(name, **common, problem=one_line(problem))]
    finally:
        model = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
    took = sorted(took[WARM_UP:] or took)
    ms = statistics.median(took)
    step = Measurement(
        name, n=len(took), median_ms=ms, p20_ms=took[len(took) // 5],
        p80_ms=took[4 * len(took) // 5], extra_bytes=peak, note=f"{1e3 * B * T / ms:,.0f} "
        f"tokens/s, {recurrence / ms:.0%} of it the recurrence; loss {losses[0]:.2f} → "
        f"{losses[-1]:.2f} after {len(losses)} steps", **common,
    )  # fmt: skip
    part = Measurement(
        f"{name}, the recurrence", median_ms=recurrence, note=f"{layers} layers", **common
    )
    console().print(f"{name}: {ms:.1f} ms a step, {step.note}")
    return [step, part]


def make_model(shape, task, device, mix):
    """The model of this shape; the same parameters at every call."""
    _, _, layers, C = shape
    vocabulary = len(alphabet()) if task == "text" else REVERSAL_VOCABULARY
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(Sizes(vocabulary, C, layers, min(64, C)), mix)
    count = sum(x.numel() for x in model.parameters())
    console().print(f"{count / 1e6:.0f} million parameters, {vocabulary} tokens to choose from")
    return model


def batch(task, B, T, device, step):
    if task == "text":
        return passages(step, B, T)[0].to(device), None
    longest = T // 2  # T + 1 tokens and one more
    tokens, answers = reversal(step, B, longest)
    return tokens[:, : T + 1].to(device), answers[:, :T].to(device)


def run_steps(model, batches, steps, dtype):
    """Milliseconds and losses of the steps, and the memory at the peak."""
    prepared = [batches(n) for n in range(steps)]  # made before: the GPU does not wait for them
    device = prepared[0][0].device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took, losses, began = [], [], time.perf_counter()
    for _, loss in train(model, lambda n: prepared[n], Plan(steps, rate=6e-4), autocast=dtype):
        losses.append(loss.item())  # waits for the step
        took.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return took, losses, peak


def recurrence_of(model, shape, device, dtype):
    """Both passes of the recurrence in a middle layer, as a function."""
    B, T, *_ = shape
    calls = []

    def watched(*args, **options):
        calls.append(([x.detach() for x in args if x is not None], options))
        return model.mix(*args, **options)

    tokens = passages(0, B, T)[0][:, :-1].to(device) % model.sizes.vocabulary
    with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype is not None):
        model(tokens, mix=watched)
    inputs, options = calls[len(calls) // 2]
    inputs = [x.requires_grad_() for x in inputs]
    do = torch.ones_like(inputs[2])

    def both():
        o, _ = model.mix(*inputs, **options)
        torch.autograd.grad(o, inputs, do)

    return both
