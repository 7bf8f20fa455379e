"""Solved notebooks run the cells that a solution can change, and what these need."""

from support.cells import touched

SETUP, STUB, CHECK = ("import lab", False), ("def f(): ...", True), ("r = check(f)", True)


def test_what_reads_a_solution_runs_and_what_does_not_is_left_out():
    cells = [SETUP, ("draw()", False), STUB, CHECK, ("g = r.kernel", False), ("g()", False)]
    assert touched(cells) == {0, 2, 3, 4, 5}


def test_what_these_need_runs_too():
    cells = [SETUP, ("x = 1", False), ("x.y = 2", False), ("z = 3", False), STUB, ("f(x)", False)]
    assert touched(cells) == {0, 1, 2, 4, 5}


def test_a_name_that_is_set_anew_is_the_solutions_no_longer():
    cells = [SETUP, STUB, CHECK, ("r = 1", False), ("print(r)", False)]
    assert touched(cells) == {0, 1, 2}


def test_functions_classes_imports_and_lines_for_the_shell_are_understood():
    cells = [SETUP, ("%time 1\nfrom a import f as b\nclass C: pass", False), ("b(C)", True)]
    assert touched(cells) == {0, 1, 2}
