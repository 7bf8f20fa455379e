"""python -m rwkv_lessons.bench record-all: every record, one after the other.

    record-all --list             what there is to record, and what is recorded already
    record-all --needed           only what is missing, of older code, or of another command
    record-all 'wkv6*'            only these names

The library's own records come first, those with other people's packages last: compiling and trying
their configurations takes minutes. Each record has a process of its own and a time limit: one that
fails or takes too long does not stop the others. The next process already imports torch, Triton and
numba while one measures, and touches the GPU only when it is its turn.

A record is saved as soon as it is measured. To go on after an interruption, ask for what is
--needed. What needs two GPUs is skipped where one is to be seen.
"""

import fnmatch
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

from rwkv_lessons.operations import LADDERS, OPERATIONS
from rwkv_lessons.operations.entries import BENCH, ROOT, is_here, own
from rwkv_lessons.records.lookup import is_stale
from rwkv_lessons.records.rates import CEILING_NAMES
from rwkv_lessons.records.schema import load, need_records, path
from rwkv_lessons.runtime.command_line import WrongArgument

GPU = "NVIDIA H200"  # whose records --list and --needed look at where there is no GPU
# First: the others are held against them.
CEILINGS = replace(own("ceilings", "ceilings", table=None), holds=CEILING_NAMES)


def _order(plan):
    """Ladders, then the library, then what waits for other packages, then other packages."""
    return "--peers" in plan.arguments, plan.needs is not None, plan.table != "ladder"


def _plans():
    ladders = [ladder.plan for ladder in LADDERS.values()]
    records = [plan for operation in OPERATIONS.values() for plan in operation.records]
    return CEILINGS, *sorted([*ladders, *records], key=_order)


PLANS = _plans()
# A process that is ready for its command: these imports take longer than many a measurement.
READY = """
import shlex, sys
from rwkv_lessons.bench import __main__
from rwkv_lessons.bench.commands import mla_decode, mla_ladder, mla_prefill, run
sys.argv[1:] = shlex.split(sys.stdin.readline())
if sys.argv[1:]:
    __main__.main()
"""


def planned(name):
    """The command that writes the record `name`."""
    return next(plan.command for plan in PLANS if plan.name == name)


def command(options):
    """Records what was asked for; exits with 1 if anything failed."""
    need_records()
    gpu = _gpu()
    needed_on = gpu or GPU if options.needed else None
    plans = chosen(options.names, needed_on)
    if options.list:
        for plan in plans:
            print(f"{plan.name:28} {state(plan, gpu or GPU):36} {plan.command}")
        return
    if not gpu:
        raise ValueError("no NVIDIA GPU here: there is nothing to record")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: told to end"))  # and end what runs
    environment = os.environ | ({"RWKV_LESSONS_COMMIT": options.commit} if options.commit else {})
    start = time.monotonic()
    results = record_all(plans, environment)
    print("\n".join(["", *(f"{plan.name:28} {outcome}" for plan, outcome in results)]))
    print(f"{len(results)} in {time.monotonic() - start:.0f} s", flush=True)
    if any(outcome.startswith("failed") for _, outcome in results):
        sys.exit(1)


def chosen(names=(), needed_on=None):
    """The plans with one of these names ("wkv6*"), all if none; on a GPU, only what it lacks."""
    for name in names:
        if not fnmatch.filter([plan.name for plan in PLANS], name):
            existing = ", ".join(plan.name for plan in PLANS)
            raise WrongArgument(f"no record {name!r}: there are {existing}")
    plans = [p for p in PLANS if not names or any(fnmatch.fnmatch(p.name, x) for x in names)]
    return [p for p in plans if needed_on is None or state(p, needed_on) != "recorded"]


def state(plan, gpu, folder=None):
    """ "missing", "stale", "of older host code", "incomplete", "recorded by another command" or
    "recorded".
    """
    file = path(plan.name, gpu, folder)
    if not file.exists():
        return "missing"
    recorded = load(file)
    if is_stale(recorded):
        return "stale"
    if any(row.host_changed for row in recorded.rows):
        return "of older host code"
    contents = {*recorded.ceilings, *((row.method, row.dtype) for row in recorded.rows)}
    if not contents.issuperset(plan.holds):
        return "incomplete"
    same = _asked(recorded.provenance.command) == _asked(plan.command)
    return "recorded" if same else "recorded by another command"


def _asked(command):
    """The command without what only says where the result goes."""
    return re.sub(r" --commit \S+| --record( [\w-]+)?(?= --|$)|['\"]", "", command)


def record_all(plans, environment=None, ready=READY):
    """Runs the plans in this order; returns each with "recorded in 12 s" or "failed: …".

    Prints each when it is done, so that what is cut off has told what it did until then.
    """
    results, waiting = [], _start(environment, ready)
    try:
        for plan in plans:
            print(f"\n== {time.strftime('%T')} {plan.command}", flush=True)
            if plan.needs and not is_here(plan.needs):
                outcome = f"skipped: there is no {plan.needs}"
            elif plan.gpus > 1 and _gpus() < plan.gpus:
                outcome = f"skipped: needs {plan.gpus} GPUs"
            else:
                process, waiting = waiting, _start(environment, ready)
                outcome = _run(process, plan)
            print(f"-- {plan.name} {outcome}", flush=True)
            results.append((plan, outcome))
    finally:
        _end(waiting)
    return results


def _start(environment, ready):
    return subprocess.Popen(
        [sys.executable, "-c", ready],
        stdin=subprocess.PIPE, cwd=ROOT, env=environment, text=True, start_new_session=True,
    )  # fmt: skip


def _run(process, plan):
    start, words = time.monotonic(), plan.command.removeprefix(BENCH)
    try:
        process.stdin.write(f"{words}\n")
        process.stdin.close()
        code = process.wait(plan.limit_s)
    except BrokenPipeError:
        code = process.wait()
    except subprocess.TimeoutExpired:
        return f"failed: not done after {plan.limit_s} s"
    finally:
        _end(process)
    took = f"{time.monotonic() - start:.0f} s"
    return f"failed: exit status {code}, after {took}" if code else f"recorded in {took}"


def _end(process):
    """Ends it if it still runs, and the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _gpus():
    """How many there are, as torch counts them."""
    import torch

    return torch.cuda.device_count()


def _gpu():
    """The GPU's name, or None. torch would know it, and take seconds to say so."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i=0"]
    try:
        process = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
