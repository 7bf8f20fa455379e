"""First kernels, to see how an exercise works: one thread per element, then three warm-ups."""

from functools import partial

import numpy as np
from numba import cuda, float32, int32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import ATOMICS, at_least, at_most, float32_only, machine_code
from rwkv_lessons.lab.lessons.lesson_00.evidence import Small, answer, requests, this_gpu, traffic
from rwkv_lessons.runtime.launch_numba import ceil_div

BLOCK = 32  # threads per block of `double`, `histogram`
ROWS, COLUMNS = 4, 8  # threads per block of `outer`
N = 64  # threads per block of `block_sums`
BINS = 16


@cuda.jit
def double(x, y):
    """y = 2·x; x and y are [n] float32. There are at least n threads, 32 to a block."""
    i = cuda.grid(1)  # the number of this thread among all threads
    ### BEGIN SOLUTION
    if i < x.shape[0]:
        y[i] = 2 * x[i]
    ### END SOLUTION


@cuda.jit
def outer(k, v, kv):
    """kv[i, j] = k[i] · v[j]; k is [K], v is [V], kv is [K, V], all float32.

    Blocks are 8 threads wide (x, along j) and 4 high (y, along i), and enough to cover kv.
    """
    ### BEGIN SOLUTION
    j, i = cuda.grid(2)
    if i < kv.shape[0] and j < kv.shape[1]:
        kv[i, j] = k[i] * v[j]
    ### END SOLUTION


@cuda.jit
def block_sums(x, sums):
    """sums[b] = the sum of block b's 64 elements of x; 64 threads to a block.

    x is [n] float32, sums is [blocks] float32. The last block may have fewer elements. Each element
    is read from global memory once, by a thread of its own. No atomics.
    """
    ### BEGIN SOLUTION
    s_x = cuda.shared.array(64, float32)
    i, n = cuda.grid(1), cuda.threadIdx.x
    s_x[n] = x[i] if i < x.shape[0] else float32(0)
    cuda.syncthreads()  # every element is there before anyone reads
    if n == 0:
        total = float32(0)
        for m in range(64):
            total += s_x[m]
        sums[cuda.blockIdx.x] = total
    ### END SOLUTION


@cuda.jit
def histogram(x, counts):
    """counts[c] = how many elements of x are c; x is [n] int32, 0 to 15; counts is [16] int32.

    There are at least n threads, 32 to a block. counts is zero before the launch.
    """
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(counts, x[i], 1)
    ### END SOLUTION


def doubled(name, n, symptom="own", **more):
    x = np.linspace(-1, 2, n, dtype=np.float32)
    return Small(name, symptom, ceil_div(n, BLOCK), BLOCK, (x,), 2 * x, **more)


def product(name, K, V, symptom="own", **more):
    k, v = np.linspace(-1, 2, K, dtype=np.float32), np.linspace(3, -1, V, dtype=np.float32)
    grid = ceil_div(V, COLUMNS), ceil_div(K, ROWS)
    return Small(name, symptom, grid, (COLUMNS, ROWS), (k, v), np.outer(k, v), letters="ij", **more)


def summed(name, n, symptom="own", **more):
    x = (7 * np.arange(n) % 19 - 6).astype(np.float32)  # whole numbers: any order adds up alike
    want = np.add.reduceat(x, np.arange(0, n, N))
    return Small(name, symptom, ceil_div(n, N), N, (x,), want, letters="b", **more)


def counted(name, x, symptom="own", **more):
    x = np.asarray(x, np.int32)
    want = np.bincount(x, minlength=BINS).astype(np.int32)
    return Small(
        name, symptom, ceil_div(len(x), BLOCK), BLOCK, (x,), want, start=0, letters="c", **more
    )


def mixed(n):
    """n whole numbers from 0 to 15, some more frequent than others, 15 among them."""
    return (np.arange(n) ** 2 + 15) % BINS


ONE_EACH = (
    "Two threads write the same element. Each thread needs its own index, unique across all blocks."
)

EXERCISES = {
    "double": Exercise(
        minutes=3,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "if i < x.shape[0]:": "96 threads start for 70 elements; the guard stops the "
                "other 26.",
            },
            instead={
                "A stride loop, for i in range(cuda.grid(1), n, cuda.gridsize(1))": "any grid "
                "works, for one extra index addition per iteration.",
            },
            stretch="Write it with the stride loop and launch a single block. It must still be "
            "right for any n.",
        ),
        hints=(
            "There may be more threads than elements. What should the extra ones do?",
            "Nothing. Put the work inside `if i < …`, with the number of elements of x.",
            "if i < x.shape[0]: and, inside it, y[i] = 2 * x[i].",
        ),
        evidence=(
            answer(
                doubled("one block, all of it needed", BLOCK),
                doubled("two blocks", 2 * BLOCK),
                doubled("a last block with idle threads", 2 * BLOCK + 6),
                doubled("one element", 1),
                doubled("1,100 elements", 1100),
                doubled("66,000 elements", 66_000, "many elements"),
            ),
            traffic(doubled("three blocks", 96), requests("load", 6), requests("store", 3)),
            machine_code(
                float32_only(),
                at_least(1, "LDG"),
                at_least(1, "STG"),
                signature=(float32[::1],) * 2,
            ),
            this_gpu(partial(doubled, "large", 1_000_003)),
        ),
        symptoms={
            "own": "Every thread that has an element writes y[i], whichever block it is in.",
            "owner": ONE_EACH,
        },
    ),
    "outer": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "j, i = cuda.grid(2)": "x varies fastest within a warp, and j runs along a row: "
                "neighbouring threads write neighbouring elements.",
                "if i < kv.shape[0] and j < kv.shape[1]:": "The blocks extend past the end on "
                "the right and at the bottom.",
            },
            instead={
                "A flat grid, i = n // V and j = n % V": "no idle threads at the end of a row, "
                "at the cost of a division by a number that the compiler does not know.",
            },
            stretch="Swap i and j so that neighbours write down a column, and count the sectors "
            "of the stores with lesson 03's `trace`.",
        ),
        hints=(
            "cuda.grid(2) returns two indices, along x and y. Which of them is j?",
            "j, i = cuda.grid(2): x comes first and runs along a row. Then guard both directions.",
            "j, i = cuda.grid(2)\nif i < kv.shape[…] and j < kv.shape[…]:\n    kv[i, j] = …",
        ),
        evidence=(
            answer(
                product("one block", 4, 8),
                product("more columns than rows", 4, 24),
                product("more rows than columns", 12, 8),
                product("idle threads on the right and at the bottom", 5, 11, "tail"),
                product("one element", 1, 1, "tail"),
                product("many blocks", 70, 140),
                product("66,049 elements", 257, 257, "many elements"),
            ),
            traffic(product("six blocks", 8, 24), requests("load", 12), requests("store", 6)),
            machine_code(
                float32_only(),
                signature=(float32[::1], float32[::1], float32[:, ::1]),
            ),
            this_gpu(partial(product, "large", 1003, 2005)),
        ),
        symptoms={
            "own": "x counts columns (j) and y counts rows (i). cuda.grid(2) returns x first.",
            "tail": "The blocks extend past the end on both sides: guard i and j.",
            "owner": ONE_EACH,
        },
    ),
    "block_sums": Exercise(
        minutes=5,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "s_x[n] = x[i] if i < x.shape[0] else float32(0)": "Every thread fills its "
                "element of the shared array, with 0 if there is no element of x for it.",
                "cuda.syncthreads()": "All 64 threads reach this line, including those without "
                "an element. Before it, parts of the array are still unset.",
            },
            instead={
                "A tree: 32 threads add the other half, then 16, 8 …": "6 steps with a barrier "
                "each, instead of 64 additions that each wait for the one before.",
                "cuda.atomic.add(sums, b, x[i])": "no shared memory, but 64 atomics queue up on "
                "one address, and the last digits depend on their order.",
            },
            stretch="Write the tree. Which barriers does it need, and can a thread return before "
            "the last one?",
        ),
        hints=(
            "Every thread loads one element for the whole block. Which thread adds them up, and "
            "when can it start?",
            "s_x = cuda.shared.array(64, float32), one element from each thread, "
            "cuda.syncthreads(), then thread 0 adds them up. A thread without an element stores "
            "0 and waits with the others.",
            "s_x = cuda.shared.array(64, float32)\n"
            "i, n = cuda.grid(1), cuda.threadIdx.x\n"
            "s_x[n] = x[i] if i < … else float32(0)\n"
            "cuda.syncthreads()\n"
            "if n == 0:\n"
            "    total = float32(0)\n"
            "    for m in range(64): …\n"
            "    sums[cuda.blockIdx.x] = total",
        ),
        evidence=(
            answer(
                summed("one block", N),
                summed("three blocks", 3 * N),
                summed("a last block with 6 elements", N + 6, "spare"),
                summed("threads run in reverse order", N, "order", reverse=True),
                summed("1,100 elements", 1100),
                summed("33,000 elements", 33_000, "many elements"),
            ),
            traffic(
                summed("two blocks", 2 * N),
                requests("load", 4),
                requests("store", 4),
            ),
            machine_code(
                at_least(1, "BAR", text="a barrier"),
                at_most(0, *ATOMICS, text="no atomics"),
                signature=(float32[::1],) * 2,
            ),
            this_gpu(partial(summed, "large", 1_000_003)),
        ),
        symptoms={
            "own": "Block b adds up elements 64·b to 64·b + 63 and writes sums[b].",
            "spare": "A thread without an element still owns an element of the shared array. "
            "What value does it hold?",
            "order": "Some thread reads before all have written. Where do the threads wait for "
            "each other? All 64 must reach that line.",
        },
    ),
    "histogram": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "cuda.atomic.add(counts, x[i], 1)": "It reads, adds and writes in one step; any "
                "other thread adding to that counter waits.",
            },
            instead={
                "Sixteen counters in shared memory for each block, added up at its end": "16 "
                "atomics on global memory per block instead of 32; atomics on shared memory are "
                "cheaper.",
            },
            stretch="Give each block its own counters in shared memory. Where does it need "
            "barriers?",
        ),
        hints=(
            "Many threads add to one counter. counts[c] += 1 is a read, an addition and a write.",
            "cuda.atomic.add(array, index, value) does all three in one step.",
            "i = cuda.grid(1), the guard, and cuda.atomic.add(counts, x[…], 1).",
        ),
        evidence=(
            answer(
                counted("all values the same", [3] * BLOCK),
                counted("sixteen different values", range(BINS)),
                counted("several blocks, with idle threads", mixed(3 * BLOCK + 5)),
                counted("one element", [15]),
                counted("1,100 elements", mixed(1100)),
                counted("66,000 elements", mixed(66_000), "many elements"),
            ),
            traffic(
                counted("three blocks", mixed(3 * BLOCK)),
                requests("atomic", 96, least=1, space=None),
            ),
            machine_code(
                at_least(1, *ATOMICS, "ATOMS", text="an atomic"), signature=(int32[::1],) * 2
            ),
            this_gpu(partial(counted, "large", mixed(1_000_003))),
        ),
        symptoms={
            "own": "The value x[i] says which counter to increment.",
            "owner": "Two threads read the same count, both add 1 and both write it back, so one "
            "increment is lost. An atomic cannot be interrupted.",
        },
    ),
}
