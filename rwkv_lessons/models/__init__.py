"""Models made of the kernels, and what they learn: examples to read, lesson 29's."""
