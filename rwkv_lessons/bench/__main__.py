"""The command line: python -m rwkv_lessons.bench --help."""

import argparse
import sys
from importlib import import_module

from rwkv_lessons.bench.commands.profile import LOOPS
from rwkv_lessons.ladders import LADDERS
from rwkv_lessons.operations import DTYPES, SHAPES


def main(argv=None):
    options = _parser().parse_args(argv)
    try:
        options.command(options)
    except ValueError as problem:
        sys.exit(f"bench: {problem}")


def _parser():
    parser = argparse.ArgumentParser(prog="python -m rwkv_lessons.bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for operation in SHAPES:
        methods = commands.add_parser(operation, help=f"time the methods of {operation}")
        _add_what(methods)
        methods.add_argument("--peers", action="store_true", help="other packages, if installed")
        methods.set_defaults(command=_on_torch("time_methods"), operation=operation)
        _add_record(methods)

    ladder = commands.add_parser("ladder", help="time the rungs of the lessons")
    ladder.add_argument("operation", choices=LADDERS)
    _add_what(ladder)
    _add_record(ladder)
    ladder.set_defaults(command=_on_torch("time_ladder"))

    latent = commands.add_parser("mla-decode", help="time a query token against a latent cache")
    _add_what(latent, _shape_of("B,N,H,R,P,V"), "B,N,H,R,P,V")
    latent.set_defaults(command=_on("mla_decode"))
    _add_record(latent)

    profile = commands.add_parser("profile", help="what the plain torch loop launches, lesson 02")
    profile.add_argument("operation", choices=LOOPS)
    _add_record(profile)
    profile.set_defaults(command=_on("profile"))

    first = commands.add_parser("first", help="time the first call of a fresh process, WKV-6")
    first.add_argument("--dtype", type=_names(DTYPES), help="one or more of " + ",".join(DTYPES))
    first.add_argument("--methods", type=_names(), help="only these, separated by commas")
    first.set_defaults(command=_on_torch("time_first_calls"))
    _add_record(first)

    prefill = commands.add_parser("mla-prefill", help="latent attention of a whole prompt")
    prefill.add_argument(
        "--shape", type=_shape_of("B,T,H,K,R,P,V"), action="append", help="B,T,H,K,R,P,V"
    )
    prefill.add_argument("--dtype", type=_names(DTYPES), help="one or more of " + ",".join(DTYPES))
    _add_choice(prefill)
    _add_record(prefill)
    prefill.set_defaults(command=_on("mla_prefill"))

    generate = commands.add_parser("mla-generate", help="a whole MiniCPM3-4B that generates text")
    sizes = "batch,tokens in,tokens out"
    generate.add_argument("--shape", type=_shape_of(sizes), action="append", help=sizes)
    _add_choice(generate)
    _add_record(generate)
    generate.set_defaults(command=_on("mla_generate"))

    ceilings = commands.add_parser(
        "ceilings", help="measure this GPU's bytes and operations a second"
    )
    _add_record(ceilings)
    ceilings.set_defaults(command=_on_torch("measure_ceilings"))

    every = commands.add_parser("record-all", help="make every record, each within its time limit")
    every.add_argument("names", nargs="*", help="only these records; 'wkv6*' is several")
    every.add_argument("--list", action="store_true", help="only say what there is")
    every.add_argument("--needed", action="store_true", help="what is missing or out of date")
    every.add_argument("--archive", metavar="FILE.tar", help="also keep the files in an archive")
    every.add_argument("--commit", help="of the code that is measured, where git is not there")
    every.set_defaults(command=_on("record_all"))

    readme = commands.add_parser("readme", help="write README's tables and figures from records")
    readme.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    readme.set_defaults(command=_readme)

    matrix = commands.add_parser("matrix", help="compile every kernel for every architecture")
    matrix.add_argument("--check", action="store_true", help="compare the table, write nothing")
    matrix.add_argument("--missing", action="store_true", help="keep the rows that are still fresh")
    matrix.add_argument("--architectures", help="only these, sm_89,sm_120")
    matrix.set_defaults(command=_on("matrix"))

    rungs = commands.add_parser("mla-ladder", help="a step of latent attention, rung by rung")
    rungs.add_argument("--methods", type=_names(), help="only these, separated by commas")
    rungs.add_argument("--dtype", type=_names(DTYPES), help="one or more of " + ",".join(DTYPES))
    rungs.add_argument("--quick", action="store_true", help="a small shape, few repetitions")
    _add_record(rungs)
    rungs.set_defaults(command=_on("mla_ladder"))
    return parser


def _add_what(parser, shape=None, letters="B,T,H,N"):
    parser.add_argument(
        "--shape", type=shape or _shape, action="append", help=f"{letters}; may be repeated"
    )
    parser.add_argument("--dtype", type=_names(DTYPES), help="one or more of " + ",".join(DTYPES))
    parser.add_argument("--methods", type=_names(), help="only these, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a small shape, few repetitions")


def _add_choice(parser):
    parser.add_argument("--methods", type=_names(), help="only these, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a small size, few repetitions")


def _add_record(parser):
    parser.add_argument(
        "--record", nargs="?", const="", metavar="NAME", help="keep the result, under this name"
    )
    parser.add_argument("--commit", help="of the code that is measured, where git is not there")


def _shape(text, letters="B,T,H,N"):
    try:
        shape = tuple(int(n) for n in text.split(","))
        if len(shape) != len(letters.split(",")):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: needs numbers {letters}") from None
    return shape


def _shape_of(letters):
    return lambda text: _shape(text, letters)


def _names(known=None):
    def parse(text):
        names = text.split(",")
        unknown = [name for name in names if known and name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: needs one of {', '.join(known)}")
        return names

    return parse


def _on_torch(name):
    """A command of run.py, imported when it is used: --help and readme need no torch."""

    def command(options):
        from rwkv_lessons.bench.commands import run

        getattr(run, name)(options)

    return command


def _on(module):
    """`command` of a module of this package, imported when it is used."""

    def command(options):
        import_module(f"rwkv_lessons.bench.commands.{module}").command(options)

    return command


def _readme(options):
    from rwkv_lessons.report import write as readme

    readme.command(check=options.check)


if __name__ == "__main__":
    main()
