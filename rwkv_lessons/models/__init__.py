"""Models built on the kernels, with training tasks: examples to read, used by lesson 29."""
