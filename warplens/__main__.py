"""`warplens trace file.py:kernel`, also as `python -m warplens trace …`."""

import sys

from .command_line import run

COMMANDS = {
    "trace": "count what a kernel asks of memory, and find its races, without a GPU",
    "run": "run a program of numba-cuda or numba-cuda-mlir on the CPU, and find what is wrong",
}
HELP = "usage: warplens COMMAND …\n\n" + "\n".join(
    f"  {name}   {what}" for name, what in COMMANDS.items()
)


def main(argv=None):
    """Runs a command. Returns its exit status; 2 for a wrong request."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in ([], ["-h"], ["--help"]):
        print(HELP)
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"warplens: {argv[0]!r} is no command, there is {known}", file=sys.stderr)
        return 2
    if argv[0] == "run":
        from .programs import command

        return run(lambda: command.main(argv[1:]), "run")
    from . import launched  # it imports the simulators

    return run(lambda: launched.main(argv[1:]), "trace")


if __name__ == "__main__":
    sys.exit(main())
