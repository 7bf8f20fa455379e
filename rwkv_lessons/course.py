"""The `lessons` command. A wheel has it too, but the course itself is in the repository only."""

import sys


def main() -> int:
    """Runs `rwkv_lessons.lab.commands.cli`, or says what is missing for it. Ctrl-C ends it."""
    try:
        return _run()
    except KeyboardInterrupt:
        print("lessons: interrupted", file=sys.stderr)
        return 130  # as a shell's own commands do


def _run():
    try:
        from .lab.commands.cli import main as run
    except ModuleNotFoundError as error:
        if error.name.startswith("rwkv_lessons"):
            missing = "only the library is installed here; the course is in the repository"
        else:
            missing = f"{error.name} is not installed"
        print(f"lessons: {missing}: clone it, and run `make lab` there", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
