"""`cg.this_grid().sync()`: blocks that wait for each other, as a cooperative launch has them.

Each block runs in a greenlet of its own, until it ends or all its threads wait for the grid.
"""

import contextvars

import greenlet

from ..faults import DivergentBarrier

MOST_THREADS = 32_768  # that wait at once: some 16 KB each


def run_blocks(machine, blocks, args, reverse):
    """Runs the blocks one after the other, up to each barrier of the grid."""
    waiting = {block: None for block in blocks}
    while waiting:
        arrived = {}
        for block in waiting:
            task = waiting[block]
            if task is None:
                task = greenlet.greenlet(machine.run_block)
                task.gr_context = contextvars.copy_context()
                new_state = task.switch(block, args, reverse)
            else:
                task, state = task
                machine.restore(state)
                new_state = task.switch()
            if not task.dead:
                arrived[block] = task, new_state
                _few_enough(len(waiting) * machine.threads_per_block)
        if arrived and len(arrived) < len(waiting):
            _, state = next(iter(arrived.values()))
            machine.restore(state)
            missing = next(block for block in waiting if block not in arrived)
            message = (
                f"{len(arrived)} of {len(waiting)} blocks wait for the grid, but block {missing}"
            )
            raise DivergentBarrier(f"{message} has returned", None, machine.block(), (0, 0, 0))
        if arrived:
            machine.passed_grid_barrier()
        waiting = arrived


def _few_enough(threads):
    if threads > MOST_THREADS:
        raise ValueError(
            f"{threads:,} threads wait for the grid at once; at most {MOST_THREADS:,} are "
            "simulated: give a smaller grid"
        )
