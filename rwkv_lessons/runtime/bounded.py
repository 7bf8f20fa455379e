"""What calls leave for later ones like them: at most MOST of each kind.

Shapes are part of such keys, and a process may see any number of them: without a bound each would
take memory for good. What is no longer there is computed once more. What follows from its key alone
is a function that is `remembered`; `Table` is for the rest: what a call launched, or was checked
for. Only machine code has no bound, here as in Triton: `remembered_launches.machine_code`.
"""

import functools

MOST = 1024

remembered = functools.lru_cache(maxsize=MOST)  # of a function: what it returned lately


class Table(dict):
    """A dict that is emptied before it would have more than `most` entries.

    That costs a look nothing, and is safe when threads share it.
    """

    def __init__(self, most=MOST):
        super().__init__()
        self.most = most

    def __setitem__(self, key, value):
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)
