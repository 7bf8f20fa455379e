"""Times and checks kernels, and records the results. `COMMAND --help` lists its options."""

import argparse
import sys

from rwkv_lessons.operations import LADDERS, OPERATIONS
from rwkv_lessons.operations.entries import DTYPES, loaded
from rwkv_lessons.runtime.command_line import WrongArgument, at_least, run
from rwkv_lessons.runtime.packages import INSTALL, needed_by

COMMIT = "the commit to record, if git is not available"


def main(argv=None):
    options, unknown = _parser().parse_known_args(argv)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if "command" not in options:
        options.parser.error("a COMMAND is needed; `--help` lists them")
    try:
        with needed_by("this command"):
            options.command(options)
    except ModuleNotFoundError as missing:
        if missing.name not in INSTALL:
            raise
        sys.exit(f"bench: {missing}")
    except WrongArgument as problem:
        options.parser.error(str(problem))
    except (ValueError, OSError) as problem:  # also where a wheel has no records
        sys.exit(f"bench: {problem}")


def _parser():
    parser = argparse.ArgumentParser(prog="python -m rwkv_lessons.bench", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND")

    for operation in OPERATIONS.values():
        measured = commands.add_parser(operation.name, help=operation.says)
        _add_what(measured, operation.letters, operation.dtypes)
        if operation.peers:
            measured.add_argument(
                "--peers",
                action="store_true",
                help="also time packages of others, such as flash-linear-attention, if installed",
            )
        if operation.name == "wkv7-serving":
            says = "of compiled operators of Albatross, rwkv-sglang or rwkv, to time beside"
            measured.add_argument(
                "--operators", action="append", default=[], metavar="FILE.so", help=says
            )
        _add_record(measured)
        measured.set_defaults(command=_on(operation.command), operation=operation.name, peers=False)

    ladder = commands.add_parser("ladder", help="time the rungs of the lessons")
    ladder.add_argument("ladder", choices=LADDERS)
    _add_what(ladder, "the operation's letters")
    _add_record(ladder)
    ladder.set_defaults(command=_on("run:time_ladder"))

    profile = commands.add_parser("profile", help="what the plain torch loop launches, lesson 02")
    loops = [name for name, operation in OPERATIONS.items() if operation.torch_loop]
    profile.add_argument("operation", choices=loops)
    _add_record(profile)
    profile.set_defaults(command=_on("profile:command"))

    race = commands.add_parser("race", help="profile one call of each WKV-6 method (lesson 18)")
    race.add_argument("--quick", action="store_true", help="a small shape")
    race.add_argument("--traces", metavar="FOLDER", help="leave a trace of each call there")
    _add_record(race)
    race.set_defaults(command=_on("race:command"))

    first = commands.add_parser("first", help="time the first call of a fresh process, WKV-6")
    first.add_argument("--dtype", type=_names(DTYPES), help="one or more of " + ",".join(DTYPES))
    first.add_argument("--methods", type=_names(), help="only these, separated by commas")
    _add_record(first)
    first.set_defaults(command=_on("run:time_first_calls"))

    ceilings = commands.add_parser("ceilings", help="measure what this GPU can do at most")
    _add_record(ceilings)
    ceilings.set_defaults(command=_on("run:measure_ceilings"))

    quick = commands.add_parser("quick", help="time RWKV-6 and -7 in a minute, as a file to send")
    quick.add_argument(
        "--out",
        default=".",
        metavar="FOLDER",
        help="where to write <GPU>/quick.json; here if left out",
    )
    quick.add_argument("--commit", help=COMMIT)
    quick.set_defaults(command=_on("run:time_quickly"))

    every = commands.add_parser("record-all", help="make every record, each within its time limit")
    every.add_argument("names", nargs="*", help="only these records; 'wkv6*' is several")
    every.add_argument("--list", action="store_true", help="only say what there is")
    every.add_argument("--needed", action="store_true", help="what is missing or out of date")
    every.add_argument("--commit", help=COMMIT)
    every.set_defaults(command=_on("record_all:command"))

    matrix = commands.add_parser("matrix", help="compile every kernel for every architecture")
    matrix.add_argument("--check", action="store_true", help="compare the table, write nothing")
    matrix.add_argument("--missing", action="store_true", help="keep the rows that are still fresh")
    matrix.add_argument("--architectures", help="only these, sm_89,sm_120")
    matrix.set_defaults(command=_on("matrix:command"))

    compilers = commands.add_parser("compilers", help="compare what compilers make of kernels")
    compilers.add_argument("--table", action="store_true", help="compile nothing, print the tables")
    compilers.set_defaults(command=_on("compilers:command", "machine_code"))

    times = commands.add_parser("compiler-times", help="time what compilers make, on this GPU")
    packages = "triton", "numba", "numba_cuda_mlir"
    times.add_argument(
        "--packages", type=_names(packages), help="only these of " + ", ".join(packages)
    )
    times.set_defaults(command=_on("compiler_times:command", None))
    for each in (parser, *commands.choices.values()):
        each.set_defaults(parser=each)  # its usage is shown with an error
    return parser


def _add_what(parser, letters, dtypes=DTYPES):
    """Which shapes, dtypes and methods; no dtype where the operation has none to choose."""
    says = f"sizes {letters}, separated by commas; repeat it for several shapes"
    parser.add_argument("--shape", type=_numbers, action="append", help=says)
    if dtypes:
        choices = ",".join(DTYPES)
        parser.add_argument("--dtype", type=_names(DTYPES), help=f"one or more of {choices}")
    parser.add_argument("--methods", type=_names(), help="only these, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a small shape, few repetitions")
    says = "time to repeat a method, on the GPU and by wall clock each; at least 5 repetitions"
    parser.add_argument("--budget-ms", type=at_least(0, float), metavar="MS", help=says)


def _add_record(parser):
    parser.add_argument(
        "--record", nargs="?", const="", metavar="NAME", help="keep the result, under this name"
    )
    parser.add_argument("--commit", help=COMMIT)


def _numbers(text):
    try:
        return tuple(at_least(1)(n) for n in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r}: needs sizes such as 1,2,3") from None


def _names(allowed=None):
    def parse(text):
        names = text.split(",")
        unknown = [name for name in names if allowed and name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: needs one of {', '.join(allowed)}")
        return names

    return parse


def _on(function, room="commands"):
    """ "module:function" of a room here, imported when it is used: --help needs no torch."""

    def command(options):
        loaded(".".join(filter(None, ("rwkv_lessons.bench", room, function))))(options)

    return command


if __name__ == "__main__":
    sys.exit(run(main, "bench"))
