"""Without a GPU Triton kernels run in the interpreter. Fresh memory is always full of NaN."""

import os
import zlib

import pytest
import torch
from hypothesis import settings

settings.load_profile("ci")  # the same examples in every run, however long one takes
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores
    torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(autouse=True)
def seeded(request):
    """The same random numbers in every run, whichever tests ran before."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


def pytest_configure():
    """Patches triton.language once a launch of an interpreted kernel, and leaves nothing patched.

    The interpreter does it for each function that a kernel calls too, each time it is called: half
    of the time that a kernel takes. And it never undoes that: other tests compile.
    """
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    patch, run, outer = interpreter._patch_lang, interpreter.GridExecutor.__call__, []
    languages, patched = (tl, tl.core), set()

    def remembered(function):
        """The scope of the launch that is under way, or a new one."""
        there = list(function.__globals__.values())
        present = {n for n, x in enumerate(languages) if any(x is y for y in there)}
        if outer and not outer[0]._changes:  # undone meanwhile
            outer.clear()
        if outer and present <= patched:
            return outer[0]
        if not outer:
            patched.clear()
        patched.update(present)
        outer.append(patch(function))
        if len(outer) > 1:  # undone with the kernel's own changes, the last ones first
            outer[0]._changes += outer.pop()._changes
        return outer[0]

    def restored(self, *args, **kwargs):
        try:
            return run(self, *args, **kwargs)
        finally:
            outer.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = remembered, restored


@pytest.fixture
def on_an_h200(monkeypatch):
    """The rule is that of an H200, whatever GPU is here."""
    from rwkv_lessons.runtime import devices

    monkeypatch.setattr(devices, "current", lambda: devices.H200)
