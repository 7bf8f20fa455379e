"""A wrong command line is told in a line that names the argument, with exit status 2."""

import argparse
import os
import subprocess
import sys

import pytest

from rwkv_lessons.bench import __main__ as bench_commands
from rwkv_lessons.bench.__main__ import main as bench
from rwkv_lessons.lab.commands import lock
from rwkv_lessons.lab.lessons.lesson_30.two_processes import main as two_processes
from rwkv_lessons.models.reverse import main as reverse
from rwkv_lessons.models.text import main as text
from rwkv_lessons.report.site import main as site
from rwkv_lessons.runtime import command_line
from rwkv_lessons.verify.__main__ import main as verify
from warplens.launched import main as trace

WRONG = [
    (verify, "--processes 0", "--processes: '0': needs an integer of at least 1"),
    (verify, "--patience nan", "--patience: 'nan': needs a number of at least 1"),
    (verify, "--assembler /no/ptxas", "--assembler: there is no program /no/ptxas"),
    (verify, "--json /no/such/file", "--json: '/no/such/file': /no/such is not a writable folder"),
    (verify, "--only nothing", "--only: no case has nothing in its name"),
    (reverse, "--steps -5", "--steps: '-5': needs an integer of at least 1"),
    (reverse, "--seed -1", "--seed: '-1': needs an integer from 0 to 1000000000000"),
    (text, f"--seed {10**13}", f"--seed: '{10**13}': needs an integer from 0 to 1000000000000"),
    (reverse, "--threads many", "--threads: 'many': needs an integer of at least 1"),
    (reverse, "--checkpoint /no/such/file", "/no/such is not a writable folder"),
    (trace, "file.py:kernel --blocks 0", "--blocks: '0': needs an integer of at least 1"),
    (trace, "file.py:kernel --arch sm_99", "--arch: invalid choice: 'sm_99' (choose from"),
    (site, "", "the following arguments are required: folder"),
    (two_processes, "", "the following arguments are required: folder, about, rank"),
    (two_processes, "folder about 0", "argument about: invalid loads value: 'about'"),
    (lock.main, "anything", "unrecognized arguments: anything"),
    (bench, "wkv6 --shape 0,8,1,4", "--shape: '0,8,1,4': needs sizes such as 1,2,3"),
    (bench, "wkv6 --quick --shape 1,2", "--shape: shape is (1, 2), needs 4 positive numbers"),
    (bench, "wkv5 --quick --methods fastest", "--methods: no method fastest: there are reference"),
    (bench, "wkv6 --shape 8,4096", "--shape: shape is (8, 4096), needs 4 positive numbers"),
    (bench, "mla-prefill --shape 1,2", "--shape: shape is (1, 2), needs"),
    (bench, "mla-prefill --methods foo", "--methods: no method foo: there are"),
    (bench, "mla-ladder --methods foo", "--methods: no method foo: there are"),
    (bench, "sequence-parallel --methods foo", "--methods: no method foo: there are wkv6"),
    (bench, "first --methods foo", "--methods: no method foo: there are wkv6"),
    (bench, "ladder wkv5 --shape 1,2", "--shape: shape is (1, 2), needs 4 positive numbers"),
    (bench, "wkv5 --quick --record ../try", "--record '../try': needs wkv5-something"),
    (bench, "wkv5 --quick --record", "record it under a name of its own"),
    (bench, "matrix --architectures sm_1", "--architectures: 'sm_1' is none of sm_80"),
    (bench, "", "a COMMAND is needed; `--help` lists them"),
    (bench, "wkv6 --budget-ms -4", "--budget-ms: '-4': needs a number of at least 0"),
]

USAGE = [
    ("mla-decode --shapes 1,2,3", "mla-decode [-h] [--shape SHAPE]"),
    ("compilers --foo", "compilers [-h] [--table]"),
    ("matrix sm_99", "matrix [-h] [--check]"),
    ("wkv5 --quick --methods fastest", "wkv5 [-h] [--shape SHAPE]"),
    ("", "bench [-h] COMMAND"),
    ("--foo", "bench [-h] COMMAND"),
]


@pytest.mark.parametrize("main, line, says", WRONG, ids=lambda x: isinstance(x, str) and x or None)
def test_a_wrong_value_is_told_with_its_argument(main, line, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("line, usage", USAGE)
def test_a_wrong_option_of_the_bench_shows_that_commands_usage(line, usage, capsys):
    with pytest.raises(SystemExit) as stop:
        bench(line.split())
    assert stop.value.code == 2
    assert usage in capsys.readouterr().err.splitlines()[0]


def test_every_option_of_the_bench_says_what_it_does():
    actions = bench_commands._parser()._actions
    (commands,) = (x.choices for x in actions if x.nargs == argparse.PARSER)
    assert len(commands) > 20
    for name, parser in commands.items():
        for option in parser._actions:
            assert not option.option_strings or len(option.help.split()) > 2, (name, option.dest)


def test_help_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(lock, "write", lambda: pytest.fail("it wrote"))
    with pytest.raises(SystemExit) as stop:
        lock.main(["--help"])
    assert stop.value.code == 0 and "requirements.lock" in capsys.readouterr().out


def test_an_interrupted_command_ends_in_a_line(capsys):
    def main():
        raise KeyboardInterrupt

    assert command_line.run(main, "bench") == 130
    assert capsys.readouterr().err == "bench: interrupted\n"


def test_a_reader_may_stop_reading():
    command = f"{sys.executable} -m rwkv_lessons.verify --list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1


def test_a_terminal_without_a_character_shows_a_question_mark():
    code = "from rwkv_lessons.runtime.command_line import run; run(lambda: print('a … b'), 'bench')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, [b"a", b"?", b"b"])
