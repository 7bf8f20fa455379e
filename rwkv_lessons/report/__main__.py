"""The tables and figures of README.md and docs/, written from the records."""

import argparse
import sys

from rwkv_lessons.runtime.command_line import run
from rwkv_lessons.runtime.packages import INSTALL, needed_by


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m rwkv_lessons.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args(argv)
    try:
        with needed_by("this command"):
            from .write import command

            command(check=options.check)
    except ModuleNotFoundError as missing:
        if missing.name not in INSTALL:
            raise
        sys.exit(f"report: {missing}")
    except (ValueError, OSError) as problem:  # also where a wheel has no records
        sys.exit(f"report: {problem}")


if __name__ == "__main__":
    sys.exit(run(main, "report"))
