"""Looks at the last launch only: the kernels that queue up before it are forgotten."""


def finish(durations, launch):
    return (len(durations) - 1) * launch + durations[-1]
