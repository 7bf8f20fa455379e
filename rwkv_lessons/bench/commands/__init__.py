"""One file per command of `python -m rwkv_lessons.bench`."""
