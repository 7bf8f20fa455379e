"""Of a notebook, the shell runs what the learner's function depends on, and nothing else."""

import pytest

from rwkv_lessons.lab.commands import slicing

F = "def f(): return {}"


def run(*cells, name="f", own=None):
    """Runs what `name` depends on in cells; the last is the exercise's unless another is."""
    own = len(cells) - 1 if own is None else own
    statements = []
    for n, cell in enumerate(cells):
        statements += slicing.statements_of(slicing.parsed(cell, "cell"), n)
    names = {}
    exec("\n".join(map(text, slicing.needed(statements, name, own))), names)
    return names[name]


def text(statement):
    return slicing.ast.unparse(statement.node)


def test_measurements_and_plots_do_not_run():
    assert run("N = 3", "1 / 0", "W = 1 / 0", "print(1 / 0)", F.format("N"))() == 3


@pytest.mark.parametrize(
    "above",
    [
        ("import math as m", "half = m.floor(1.5)", "a = [half, 2]"),
        ("a = [1]", "a.append(2)"),
        ("a = [1, 0]", "a[1] = 2"),
        ("a = [1]", "a += [2]"),
        ("a = [1]", "for n in (2,):\n    a.append(n)"),
        ("a = [9]", "try:\n    a = [1, 2]\nexcept ValueError:\n    pass"),
        ("from math import *", "a = [1, 2] if pi > 3 else 0"),
        ("def a(): return g", "g = 0", "g = [1, 2]", "a = a()"),
        ("class A:\n    x = 2", "a = [1, A.x]"),
        ("b = 2", "a = [[n for n in (1, b)] for _ in '1'][0]"),
        ("%matplotlib inline\na = [1, 2]\n!ls",),
        ("%%time\na = [1, 2]",),
    ],
)
def test_whatever_decides_a_value_runs(above):
    assert run(*above, F.format("a"))() == [1, 2]


def test_what_was_set_anew_before_does_not_run():
    assert run("x = 1 / 0", "x = 1", F.format("x"))() == 1


def test_a_helper_below_the_function_is_found():
    assert run(F.format("g()"), "def g(): return 4", own=0)() == 4


def test_the_whole_of_the_exercises_cell_runs():
    with pytest.raises(ZeroDivisionError):
        run(F.format("1") + "\n1 / 0")


def test_names_inside_of_functions_are_not_those_outside():
    assert run("k = 1 / 0", "def f():\n    k = 5\n    return [k for k in (k,)][0]")() == 5


def test_what_is_no_python_is_an_error():
    with pytest.raises(SyntaxError, match="never closed"):
        slicing.parsed("f(", "cell")
