"""What numba's own simulator says of the kernels in numba.cuda: `python -m planted.under_cudasim`.

Prints a line for each: its name, and the exception that it ends with, "hangs", or "nothing". Every
kernel has a process of its own, which is stopped after some seconds.
"""

import multiprocessing
import os

SECONDS = 20  # of a kernel that takes 0.1


def run(case, answer):
    from numba import cuda

    grid, block, *args = case.launch
    args = [x.copy() if hasattr(x, "copy") else x for x in args]
    try:
        case.kernel[grid, block, 0, case.options.get("sharedmem", 0)](*args)
        cuda.synchronize()
        answer.put("nothing")
    except BaseException as error:
        answer.put(type(error).__name__)
    finally:
        answer.close()
        answer.join_thread()
        os._exit(0)


def main():
    import planted

    processes = multiprocessing.get_context("fork")
    for case in planted.every(planted.NUMBA):
        answer = processes.Queue()
        child = processes.Process(target=run, args=(case, answer))
        child.start()
        child.join(SECONDS if case.finds != "EndlessLoop" else 2)
        hangs = child.is_alive()
        if hangs:
            child.kill()
        print(case.name, "hangs" if hangs else answer.get(), flush=True)


if __name__ == "__main__":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    main()
