"""Wrong answers to 00_start_here."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

double = wrong(
    every_block_the_same=(
        "Every block computes the first 32 elements, because it uses the thread's index within "
        "the block.",
        edit("cuda.grid(1)  # the number of this thread among all threads", "cuda.threadIdx.x"),
    ),
    guard_one_too_far=(
        "The guard lets one thread too many through: the last valid index is n - 1.",
        edit("if i < x.shape[0]:", "if i <= x.shape[0]:"),
    ),
    right_for_64=(
        "The extra threads of the last block write past the end of y.",
        edit(
            """
            if i < x.shape[0]:
                y[i] = 2 * x[i]
            """,
            "y[i] = 2 * x[i]",
        ),
    ),
)

outer = wrong(
    guards_one_side=(
        "The columns are guarded, but the rows are not.",
        edit("i < kv.shape[0] and j", "j"),
    ),
    rows_along_x=(
        "Uses x as the row and y as the column, but the grid is laid out the other way round.",
        edit("j, i = cuda.grid(2)", "i, j = cuda.grid(2)"),
    ),
    within_the_block=(
        "Uses the thread's index within the block, so every block computes the first tile.",
        edit("j, i = cuda.grid(2)", "j, i = cuda.threadIdx.x, cuda.threadIdx.y"),
    ),
    wrong_factor=(
        "Reads k at the column index and v at the row index.",
        edit("k[i] * v[j]", "k[j] * v[i]"),
    ),
)

block_sums = wrong(
    early_return=(
        "Threads without an element return before the barrier, and their elements of s_x stay "
        "unset.",
        edit(
            "s_x[n] = x[i] if i < x.shape[0] else float32(0)",
            """
            if i >= x.shape[0]:
                return
            s_x[n] = x[i]
            """,
        ),
    ),
    nobody_waits=(
        "There is no barrier between filling shared memory and reading it.",
        edit("cuda.syncthreads()  # every element is there before anyone reads"),
    ),
    one_for_all=(
        "Every thread writes the same element of shared memory.",
        edit("s_x[n] = x[i]", "s_x[0] = x[i]"),
    ),
    one_thread_reads_all=(
        "Thread 0 reads the whole block from global memory, so nothing is shared.",
        edit("total += s_x[m]", "total += x[i + m] if i + m < x.shape[0] else float32(0)"),
    ),
    unguarded=(
        "The last block reads past the end of x.",
        edit("x[i] if i < x.shape[0] else float32(0)", "x[i]"),
    ),
)

histogram = wrong(
    adds_the_value=(
        "Adds the element's value instead of counting it.",
        edit("x[i], 1)", "x[i], x[i])"),
    ),
    behind_the_end=(
        "The extra threads of the last block count whatever lies past the end of x.",
        edit(
            """
            if i < x.shape[0]:
                cuda.atomic.add(counts, x[i], 1)
            """,
            "cuda.atomic.add(counts, x[i], 1)",
        ),
    ),
    not_atomic=(
        "The read, the addition and the write are separate steps, and another thread can write "
        "in between.",
        edit("cuda.atomic.add(counts, x[i], 1)", "counts[x[i]] += 1"),
    ),
    one_block_only=(
        "Uses the thread's index within the block, so every block counts the first elements.",
        edit("cuda.grid(1)", "cuda.threadIdx.x"),
    ),
)
