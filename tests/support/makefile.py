"""What the Makefile installs."""

from rwkv_lessons.lab.course.exercises import ROOT

INSTALL = (
    "--constraint requirements.lock --editable ./warplens[numba,triton,pictures] "
    "--editable .[cuda,lessons,jupyter,dev]"
)


MAKEFILE = (ROOT / "Makefile").read_text()
