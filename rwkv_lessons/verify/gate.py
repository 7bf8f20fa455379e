"""What the benchmark asks before it records a time: is this method right, with its options?

A benchmark compares what it times with float64 on one input. This asks for the options beside it,
with strong decays: a number of a method that is wrong for some of its users is not kept.
"""

import functools
import json
import os
from dataclasses import replace

from rwkv_lessons.operations.checks import HOPPER
from rwkv_lessons.runtime.devices import gpu_of

from .cases import CHECKED, table
from .judge import WRONG, look
from .machine import SAME, machine

VERIFIED = "RWKV_LESSONS_VERIFIED"  # a file that `verify --json FILE` wrote on this machine
NOT_RECORDED = "not recorded, as verify has it wrong:"
OPTIONS = ("plain", "all but packed", "all")


@functools.cache
def problem(operation, method, dtype, gradients=True):
    """Why a time of this method is not to be recorded, in a sentence; None if nothing is wrong.

    A method that verify does not know, as a rung of a lesson or another package's, has no options.
    Looks at some seconds of cases, once a process; at none where the file that the environment
    variable RWKV_LESSONS_VERIFIED names holds what `verify` said of this machine and this code.
    """
    stored = verified()
    if stored is not None:
        same = (operation, method, dtype)
        judged = [x for x in stored if (x["operation"], x["method"], x["dtype"]) == same]
    else:
        judged = [look(case).as_dict() for case in _cases(operation, method, dtype, gradients)]
    wrong = [_said(x) for x in judged if x["verdict"] == WRONG]
    if not wrong:
        return None
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{NOT_RECORDED} {wrong[0]}{more}"


def _said(result):
    """A wrong result in a few words."""
    error = f"{result['error']:.1e}" if "error" in result else "not a number"
    worst = f"{result.get('worst')} {error}"
    return f"{result['name']}: {result.get('reason') or worst}"


def _cases(operation, method, dtype, gradients):
    if operation not in CHECKED:
        return []
    cases = [
        replace(c, gradients=c.gradients and gradients)
        for c in table()
        if (c.operation, c.method, c.dtype) == (operation, method, dtype)
        and c.decay in ("strong", "")
    ]
    hopper = on_hopper()
    shapes = CHECKED[operation].checks.few
    few_cases = [
        c
        for c in cases
        if c.shape in shapes and c.option in OPTIONS
        and (hopper or c.needs != HOPPER)
    ]  # fmt: skip
    return few_cases or cases[:2]


def on_hopper():
    import torch

    return gpu_of(torch.device("cuda" if torch.cuda.is_available() else "cpu")).is_hopper


@functools.cache
def verified():
    """The cases of the file that the environment names, if they hold here; else None."""
    file = os.environ.get(VERIFIED)
    if not file:
        return None
    with open(file, encoding="utf-8") as opened:
        data = json.load(opened)
    facts = machine()
    differs = [name for name in SAME if data["machine"][name] != facts[name]]
    if differs:
        raise ValueError(f"{VERIFIED}={file} is of another {', '.join(differs)}: verify again")
    if data["only"]:
        raise ValueError(f"{VERIFIED}={file} covers only some cases: verify without --only")
    return data["cases"]
