"""The movable timeline of lesson 19: what each position of its sliders shows is a run."""

from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.lessons.lessons_19_21.waits import movable_waits


def test_only_the_solution_is_right_and_each_fault_names_the_tile():
    shown = movable_waits(solutions("19_copies_in_flight").decays(B=1, T=192, H=1))
    right, *wrong = shown.captions
    assert right == "right: 2 of 3 copies in have work beside them"
    assert len(wrong) == 3 * 3 * 2 - 1
    assert all(said.startswith(("s_x[0]: a tile is ", "s_w: a tile is ")) for said in wrong)
    assert "s_w: a tile is overwritten while it is read" in wrong[1]  # a late store_wait
    assert "s_x[0]: a tile is read before the wait for it" in wrong[5]  # a late wait
