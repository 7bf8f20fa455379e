"""Puts the GPU that is not there into a program's `cuda`, as soon as the program imports it.

`start` imports neither numba nor numpy. It is called for `WARPLENS=1 python script.py` by a line
of warplens.pth, which the wheel lays beside the installed packages; by `python -m warplens run`;
and by `pytest --warplens`.
"""

import functools
import importlib.abc
import importlib.util
import os
import sys

# Modules that are patched once they are imported, and by what function of patch.py.
WATCHED = {
    "numba": "numba",
    "numba.cuda": "cuda",
    "numba_cuda_mlir": "mlir",
    "numba_cuda_mlir.cuda": "cuda",
    "numba_cuda_mlir.numba_cuda": "cuda",
}
STARTED = []


def start(races=None, seconds=None):
    """From now on, programs of this process have a GPU that is not there."""
    if not STARTED:
        STARTED.append(True)
        sys.meta_path.insert(0, Finder())
        for name in [name for name in WATCHED if name in sys.modules]:
            _patch(name, sys.modules[name])
    if races is None:
        races = os.environ.get("WARPLENS") != "no-races"
    os.environ["WARPLENS"] = "1" if races else "no-races"  # what this process starts runs so, too
    if seconds is not None:
        os.environ["WARPLENS_SECONDS"] = str(seconds)


@functools.cache
def start_at_once():
    """What warplens.pth calls: as `start`, and the report is written when the program ends.

    Once: in a virtual environment Python reads the file twice.
    """
    import atexit

    start()
    atexit.register(_at_exit, os.getpid())
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _excepthook


def _excepthook(kind, error, where):
    """As Python prints it; where a kernel was launched, without the lines of the simulator."""
    launched = f"{__package__}.launches" in sys.modules
    return (print_error if launched else sys.__excepthook__)(kind, error, where)


def print_error(kind, error, where):
    """A traceback without the lines of the simulator, and of what started the program."""
    import traceback

    shown = traceback.TracebackException(kind, error, where)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    part = shown
    while part is not None:
        part.stack[:] = [
            x for x in part.stack if not x.filename.startswith(own) and "runpy" not in x.filename
        ]
        part = part.__cause__
    print("".join(shown.format()), end="", file=sys.stderr)


def _at_exit(process):
    """Prints what was found; where that is anything, the program ends with 1."""
    findings = sys.modules.get(f"{__package__}.findings")
    if findings is None or os.getpid() != process or not findings.FOUND.launches:
        return
    findings.report(findings.FOUND, os.environ.get("WARPLENS_REPORT", "text"))
    if findings.FOUND:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _patch(name, module):
    from . import patch

    getattr(patch, WATCHED[name])(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it looks on as others find what is watched, and patches that."""

    def __init__(self):
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in WATCHED or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _patch(name, module)

        spec.loader.exec_module = exec_module
        return spec
