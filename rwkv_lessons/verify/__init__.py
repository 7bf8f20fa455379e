"""python -m rwkv_lessons.verify: is every kernel right on this GPU, with this compiler?

The compiler that turns kernels into machine code has bugs of its own, which depend on the GPU and
on versions, and which say nothing. So every operation, method and dtype is held against float64
here, each with every option, tame and strong decays, odd sizes, and the gradients of every input.

    cases.py       every `Case`, of the table of operations
    recurrence.py  inputs, results and float64 of WKV-5, WKV-6 and its single step
    latent.py      the same of latent attention
    limits.py      how large an error may be, and why
    judge.py       one case: its error, its bits, its verdict
    schedule.py    which cases one process takes, and what starts first
    pool.py        many cases at the same time, each in a process that may crash or hang
    machine.py     GPU, driver, versions, assembler, commit
    gate.py        what the benchmark asks before it records a time
"""
