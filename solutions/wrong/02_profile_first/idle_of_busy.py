"""Sets the idle time against the busy time: a share is of the whole span."""


def read_profile(kernels, tokens):
    busy = sum(kernel.us for kernel in kernels)
    elementwise = sum(kernel.us for kernel in kernels if "elementwise" in kernel.name)
    span = kernels[-1].start + kernels[-1].us - kernels[0].start
    return len(kernels) / tokens, elementwise / busy, (span - busy) / busy
