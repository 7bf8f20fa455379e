"""What trials do with the variants of an experimental kernel: compile, check, then time them."""

import math

import torch

from rwkv_lessons.bench.launches import recorded
from rwkv_lessons.bench.measure import one_line
from rwkv_lessons.bench.show import console
from rwkv_lessons.runtime import devices

ARCHITECTURE = "sm_90"
CALLS = 10  # whose bits have to be the same


def try_all(options, variants, shapes, limit, compiled_as, errors, time_shape):
    """Compiles every variant and, on a Hopper GPU, checks all and times those that are right.

    Args:
        options: `quick`: time nothing.
        variants: {name: its constants}; limit: the largest error that is right.
        compiled_as: a variant → a sentence; errors: a variant, device → (case, error) of each.
        time_shape: a shape, device, names of wrong variants → None; it prints.

    Raises:
        ValueError: a variant is wrong.
    """
    for name, variant in variants.items():
        console().print(f"{name}: {compiled_as(variant)}")
    gpu = torch.cuda.is_available() and devices.gpu_of(torch.device("cuda")).is_hopper
    if not gpu:
        console().print("no Hopper GPU here: compiled for one, neither checked nor timed")
        return
    device, wrong = torch.device("cuda"), set()
    for name, variant in variants.items():
        for case, error in errors(variant, device):
            if not error <= limit:
                wrong.add(name)
                console().print(f"{name}, {case}: error {error:.2g}, at most {limit} is right")
        console().print(f"{name}: {'WRONG, not timed' if name in wrong else 'right'}")
    if not options.quick:
        for shape in shapes:
            time_shape(shape, device, wrong)
    if wrong:
        raise ValueError(f"wrong: {', '.join(sorted(wrong))}")


def machine_code_of(launch):
    """What the one launch of `launch()` is compiled to; its machine code is looked at."""
    from rwkv_lessons.bench.machine_code.compile import compiled

    with recorded(ARCHITECTURE) as launches:
        launch()
    registers, spills, shared = compiled(launches[0], [ARCHITECTURE])[ARCHITECTURE]
    return f"{registers} registers, {spills} bytes of spills, {shared:,} bytes of shared memory"


def repeated(name, run):
    """(What `run()` returns, None), or (None, a case and NaN) if it fails or its bits change."""
    try:
        results = run()
        same = all(torch.equal(results[0], run()[0]) for _ in range(CALLS))
    except Exception as problem:  # the other cases go on
        return None, (f"{name} ({one_line(problem)})", math.nan)
    return (results, None) if same else (None, (f"{name} (other bits at another call)", math.nan))
