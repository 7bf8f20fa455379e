"""Takes the longer of all launches and all kernels: a gap early on is never caught up."""


def finish(durations, launch):
    return max((len(durations) - 1) * launch + durations[-1], sum(durations))
