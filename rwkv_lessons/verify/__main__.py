"""Compares every kernel of this library with float64, on this machine's GPU.

Exit status: 0 all is right; 1 something is wrong; 2 the command line is; 3 nothing was wrong, and
something was not checked: without a GPU that is every kernel.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from rwkv_lessons.runtime.command_line import at_least, run, writable

ALL_RIGHT, SOMETHING_WRONG, NOT_ALL_SEEN = 0, 1, 3
PTXAS = "RWKV_LESSONS_PTXAS"


def main(argv=None):
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        choose_assembler(options.assembler)  # before Triton is imported
    except ValueError as error:
        parser.error(f"--assembler: {error}")
    from .cases import table

    cases = table(options.only)
    if not cases:
        parser.error(f"--only: no case has {' or '.join(options.only)} in its name; see --list")
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return ALL_RIGHT
    return verify(cases, options)


def verify(cases, options):
    """Looks at the cases, prints a line each and a summary; returns the exit status."""
    from rwkv_lessons.operations.checks import ANYWHERE, HOPPER

    from .gate import on_hopper
    from .judge import RIGHT, UNSEEN, WRONG, Judgement, look
    from .machine import in_one_line, machine
    from .pool import context_of, examine

    out = sys.stderr if options.json == "-" else sys.stdout
    started = time.monotonic()
    context_of()  # its server imports while this process asks what machine this is
    facts = machine(options.commit)
    print(in_one_line(facts), file=out, flush=True)
    on_gpu = facts["gpu"] is not None
    if on_gpu and not on_hopper():  # there these shapes take the kernels of the others
        cases = [case for case in cases if case.needs != HOPPER]
    able = [case for case in cases if on_gpu or case.needs == ANYWHERE]
    results = []
    watched = examine(able, options.processes, options.patience)
    try:
        for result in watched if on_gpu else map(look, able):
            results.append(result)
            print(result.line, file=out, flush=True)
    except KeyboardInterrupt:
        counts = Counter(result.verdict for result in results)
        so_far = f"{counts[RIGHT]} {RIGHT}, {counts[WRONG]} {WRONG}"
        raise KeyboardInterrupt(f"{so_far} before the interrupt") from None
    reason = "no NVIDIA GPU here"
    unseen = [case for case in cases if case not in set(able)]
    for (operation, method), n in Counter((c.operation, c.method) for c in unseen).items():
        print(
            f"-----  {operation} / {method}: {n} cases not checked: {reason}", file=out, flush=True
        )
    results += [Judgement(case, UNSEEN, reason=reason) for case in unseen]

    seconds = time.monotonic() - started
    counts = Counter(result.verdict for result in results)
    numbers = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (RIGHT, WRONG, UNSEEN))
    for result in results if options.json != "-" else ():
        if result.verdict == WRONG:
            print(result.line, file=out)
    print(f"\n{in_one_line(facts)}\n{numbers}; {seconds:.0f} s", file=out)
    if unseen:
        print("No kernel was checked: this says nothing about any GPU.", file=out)
    if options.json:
        data = {"machine": facts, "seconds": round(seconds, 1), "only": options.only}
        data |= {verdict.replace(" ", "_"): counts[verdict] for verdict in (RIGHT, WRONG, UNSEEN)}
        data["cases"] = [result.as_dict() for result in results]
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    if counts[WRONG]:
        return SOMETHING_WRONG
    return NOT_ALL_SEEN if counts[UNSEEN] else ALL_RIGHT


def choose_assembler(name):
    """Sets what runtime/assembler.py looks at, for this process and its children."""
    if name == "chosen":  # by the library, whatever the shell has
        os.environ.pop(PTXAS, None)
    elif name == "default":
        os.environ[PTXAS] = name
    elif name:
        if not os.access(name, os.X_OK):
            raise ValueError(f"there is no program {name}")
        os.environ[PTXAS] = str(Path(name).resolve())


def _parser():
    summary, _, status = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.verify", description=summary, epilog=status
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN",
        help="only cases with this in their name, such as 'wkv6*bfloat16*raw'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument(
        "--json", metavar="FILE", type=writable, help="write the results there; - prints them"
    )
    parser.add_argument(
        "--assembler", metavar="default|chosen|PATH",
        help="the ptxas: Triton's own, the one that this library picks, or another",
    )  # fmt: skip
    parser.add_argument(
        "--processes",
        type=at_least(1),
        metavar="N",
        help="cases that run in parallel; default: as many as there are cores, at most 24",
    )
    parser.add_argument(
        "--patience",
        type=at_least(1, float),
        default=120,
        metavar="SECONDS",
        help="time limit of a case; default: 120",
    )
    parser.add_argument("--commit", help="the commit to record, if git is not available")
    return parser


if __name__ == "__main__":
    sys.exit(run(main, "verify"))
