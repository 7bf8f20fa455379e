"""`python -m rwkv_lessons.lab.trace file.py:kernel`: a launch of one's own file, traced.

Only to be run: `from rwkv_lessons.lab import trace` is the function.
"""

import sys

from rwkv_lessons.runtime.command_line import run
from warplens.launched import main

if __name__ == "__main__":
    sys.exit(run(main, "trace"))
