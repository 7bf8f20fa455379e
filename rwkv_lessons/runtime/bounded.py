"""What calls leave for later ones like them: at most MOST of each kind.

Shapes are part of such keys, and a process may see any number of them: without a bound each would
take memory for good. What is no longer there is found once more.
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

    def __setitem__(self, key, found):
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, found)
