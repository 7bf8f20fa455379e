"""`warplens run script.py`: a program written for a GPU, on the CPU, and a report at its end."""

import argparse
import os
import runpy
import sys

from ..command_line import seconds
from . import hook

EXAMPLES = """examples:
  warplens run script.py --size 1000
  warplens run --report html script.py
  warplens run -m package.program
  WARPLENS=1 python script.py             where warplens is installed from a wheel
"""
KINDS = ("text", "html", "json", "github")


def main(argv=None):
    """Runs the program. Returns its own exit status, or 1 if that is 0 and something was found."""
    top = argparse.ArgumentParser(
        prog="warplens run",
        description="Run a program of numba-cuda or numba-cuda-mlir without a GPU.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(top)
    top.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    top.add_argument("program", metavar="PROGRAM", help="a script, script.py")
    top.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="for the program")
    options = top.parse_args(argv)
    if not options.module and not os.path.isfile(options.program):
        print(f"run: there is no file {options.program}", file=sys.stderr)
        return 2
    hook.start(options.races, options.seconds)
    status = _run(options)
    from .findings import FOUND, report

    report(FOUND, options.report)
    return status or int(bool(FOUND))


def add_options(parser, prefix=""):
    """The options of the command; with a prefix, those of pytest."""
    add = getattr(parser, "addoption", None) or parser.add_argument
    text = "also write what was found: html or json to a file, github as annotations"
    name = _name(prefix, "report")
    add(f"--{prefix}report", choices=KINDS, default="text", dest=name, help=text)
    text = "keep no accesses: no race is found, and launches take about half the time"
    name = _name(prefix, "races")
    add(f"--{prefix}no-races", action="store_false", default=True, dest=name, help=text)
    text = "processor time after which a launch is an endless loop (60)"
    add(f"--{prefix}seconds", type=seconds, default=None, dest=_name(prefix, "seconds"), help=text)


def _name(prefix, name):
    return prefix.replace("-", "_") + name


def _run(options):
    """The program's exit status; an exception of it is printed as Python itself would."""
    sys.argv = [options.program, *options.arguments]
    try:
        if options.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.program))
            runpy.run_path(options.program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    except Exception:
        hook.print_error(*sys.exc_info())
        return 1
    return 0
