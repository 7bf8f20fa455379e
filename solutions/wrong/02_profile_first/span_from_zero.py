"""Takes the time before the first kernel for idle time."""


def read_profile(kernels, tokens):
    busy = sum(kernel.us for kernel in kernels)
    elementwise = sum(kernel.us for kernel in kernels if "elementwise" in kernel.name)
    span = kernels[-1].start + kernels[-1].us
    return len(kernels) / tokens, elementwise / busy, 1 - busy / span
