"""The cases that verify looks at, made of what stands in the table of operations.

To add an operation: `Checks` in its entry; their problem is `Tensors` of tensors.py, or a class
like it, which is made of a case and a device and gives results and float64. Of its methods those
that stand in no row are looked at as `others` says.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from itertools import product

from rwkv_lessons.operations import TABLE
from rwkv_lessons.operations.checks import GPU

# Of what verify calls so, a package or its function of one token: the operation.
CHECKED = {operation.checks.name: operation for operation in TABLE if operation.checks}


@dataclass(frozen=True)
class CheckedCase:
    """One call of one method, forward and, where it has any, with all gradients."""

    operation: str
    method: str  # a key of its METHODS, or a function that picks one of them
    dtype: str
    shape: str  # a key of the operation's `shapes`
    option: str  # a key of its `options`
    decay: str  # "tame" or "strong"; "" where there is none
    needs: str = GPU
    gradients: bool = True

    @property
    def name(self):
        """What `--only` looks at."""
        parts = (self.operation, self.method, self.dtype, self.shape, self.option, self.decay)
        return " / ".join(part for part in parts if part)

    @property
    def sizes(self):
        return self.checks.shapes[self.shape]

    @property
    def options(self):
        return self.checks.options[self.option]

    @property
    def checks(self):
        return CHECKED[self.operation].checks

    @property
    def package(self):
        return import_module(f"rwkv_lessons.{CHECKED[self.operation].package}")


def table(only=()):
    """Every `CheckedCase` whose name has one of the patterns in it ("wkv6*raw"); all without one.

    A combination that stands in two rows is one case.
    """
    by_name = {}
    for operation, entry in CHECKED.items():
        for row in rows_of(entry):
            parts = (row.methods, row.dtypes, row.shapes, row.options, row.decays)
            for combination in product(*parts):
                case = CheckedCase(operation, *combination, row.needs, row.gradients)
                if not only or any(fnmatch(case.name, f"*{pattern}*") for pattern in only):
                    by_name.setdefault(case.name, case)
    return list(by_name.values())


def rows_of(operation):
    """The rows of an operation, and one for the methods that stand in none of them."""
    checks = operation.checks
    if checks.others is None:
        return checks.rows
    named = {method for row in checks.rows for method in row.methods}
    methods = import_module(f"rwkv_lessons.{operation.package}").METHODS
    return *checks.rows, replace(checks.others, methods=tuple(m for m in methods if m not in named))


def weight(case):
    """Numbers in r or in q: what the memory and the time of a case grow with."""
    return case.checks.numbers(*case.sizes)
