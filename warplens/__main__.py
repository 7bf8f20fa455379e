"""`warplens trace file.py:kernel`, also as `python -m warplens trace …`."""

import sys
import warnings

from . import __version__
from .command_line import run

COMMANDS = {
    "trace": "count the memory accesses of a kernel and find its races, without a GPU",
    "run": "run a program of numba-cuda or numba-cuda-mlir on the CPU; report races and faults",
}
HELP = "usage: warplens COMMAND …\n\n" + "\n".join(
    f"  {name:5}   {purpose}" for name, purpose in COMMANDS.items()
)
HELP += """

  warplens trace sum.py:add                   the first launch of the kernel `add` in sum.py
  warplens trace sum.py:add --html add.html   the same as a page: counts by line, machine code
  warplens run script.py                      all launches of a program

`warplens COMMAND --help` lists a command's options, `warplens --version` prints the version."""


def main(argv=None):
    """Runs a command. Returns its exit status; 2 for a wrong request."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in ([], ["-h"], ["--help"]):
        return run(lambda: print(HELP) or (0 if argv else 2), "warplens")
    if argv == ["--version"]:
        return run(lambda: print(f"warplens {__version__}") or 0, "warplens")
    if argv[0] not in COMMANDS:
        names = ", ".join(COMMANDS)
        print(f"warplens: {argv[0]!r} is no command, there is {names}", file=sys.stderr)
        return 2
    if argv[0] == "run":
        from .programs import command

        return run(lambda: command.main(argv[1:]), "run")
    from . import launched  # it imports the simulators

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # an encoding without … prints ?
    with warnings.catch_warnings():
        warnings.showwarning = _as_a_line
        return run(lambda: launched.main(argv[1:]), "trace")


def _as_a_line(message, *_):
    print(f"warplens: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
