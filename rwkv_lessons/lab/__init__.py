"""What the lessons teach with: check a kernel, count its traffic, read its machine code, draw it."""
