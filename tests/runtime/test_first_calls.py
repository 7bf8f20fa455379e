"""First calls: interrupted, failing, and in two threads at once."""

import signal
import threading
import types

import pytest
import torch

triton = pytest.importorskip("triton")
from rwkv_lessons.bench.launches import CompilingDriver  # noqa: E402
from rwkv_lessons.runtime import compile_triton, launch_tiles  # noqa: E402
from rwkv_lessons.runtime.compile_triton import assembled, compile_together  # noqa: E402
from rwkv_lessons.wkv6.chunked.hopper.tiles import tiles  # noqa: E402


def body(x):
    pass


@pytest.fixture
def compiler(monkeypatch):
    """Triton's compiler, which does what its attribute `does` says, for a GPU that is not there.

    No thread may stay: one that is in torch or Triton when Python ends would abort the process,
    after all of its output, with "terminate called without an active exception". After an
    interrupt one may be ending still.
    """
    before = threading.enumerate()
    found = types.SimpleNamespace(does=lambda: None, targets=[])

    def compile(src, target, **_):
        found.targets.append(target)
        found.does()
        return types.SimpleNamespace(src=src, metadata=None)

    monkeypatch.setattr(triton.runtime.driver, "_active", CompilingDriver("sm_90"))
    monkeypatch.setattr(triton.compiler, "compile", compile)
    monkeypatch.setattr(compile_triton, "_compiled", set())
    yield found
    for thread in set(threading.enumerate()).difference(before):
        thread.join(5)
        assert not thread.is_alive()


def launches(count=2):
    """As `compile_together` takes them, of kernels that are compiled for the first time."""
    return [
        (assembled(triton.JITFunction(body)), 1, 4, (torch.empty(1),), (), (), {})
        for _ in range(count)
    ]


def outside_of_any_mode():
    with triton.AsyncCompileMode(None):  # refused inside of another
        return True


@pytest.mark.parametrize("where", ["in a worker", "in the main thread"])
def test_an_interrupt_leaves_other_packages_kernels_able_to_compile(where, compiler):
    def interrupt():
        if where == "in a worker":
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(0.2)  # the main thread sees it while this one still compiles

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        compiler.does = interrupt
        with pytest.raises(KeyboardInterrupt):
            compile_together("kind", launches())
    finally:
        signal.signal(signal.SIGINT, before)
    assert outside_of_any_mode()
    assert "kind" not in compile_triton._compiled  # the next call compiles together, too
    compiler.does = lambda: None
    compile_together("kind", launches())
    assert "kind" in compile_triton._compiled


def test_a_call_inside_of_somebodys_own_mode_compiles_together_all_the_same(compiler):
    with triton.AsyncCompileMode(None):
        compile_together("kind", launches())
        assert compiler.targets


def test_what_failed_once_is_compiled_again(compiler):
    def fail():
        raise RuntimeError("ptxas was killed")

    compiler.does, given = fail, launches(1)
    compile_together("kind", given)
    compiler.does = lambda: None
    kernel, _, _, tensors, *_ = given[0]
    assert kernel.warmup(*tensors, grid=(1,), num_warps=4) is not None
    assert len(compiler.targets) == 2


def test_a_device_that_another_thread_adds_meanwhile_is_no_error(compiler):
    """Two GPUs' first launches: one looks for what failed while the other begins."""
    (launch,) = launches(1)
    kernel = launch[0]

    class Meanwhile(dict):
        def items(self):
            return kernel.device_caches[1][0].items()  # the other thread's first launch

    kernel.device_caches[0] = Meanwhile(), *kernel.device_caches[0][1:]
    compile_triton.forget_failures(kernel)
    assert list(kernel.device_caches) == [0, 1]


def test_no_thread_compiles_with_tritons_own_assembler_while_another_begins(compiler, monkeypatch):
    """A second GPU's first launch, step by step between those of the first one."""
    kernel, seen = assembled(triton.JITFunction(body)), []
    _ = kernel.device_caches[0]
    create = triton.JITFunction.create_binder

    def slowly(model):
        made = create(model)
        # Meanwhile the first thread compiles.
        kernel.compile("source", target=CompilingDriver("sm_90").target)
        seen.append(compiler.targets[-1].backend)
        return made

    monkeypatch.setattr(triton.JITFunction, "create_binder", slowly)
    _ = kernel.device_caches[1]
    kernel.compile("source", target=CompilingDriver("sm_90").target)
    assert [*seen, compiler.targets[-1].backend] == [compile_triton.NAME] * 2


def test_tiles_that_another_thread_made_known_meanwhile_are_encoded(monkeypatch):
    """What one launch needs is looked at before the first launch, by another thread, is over."""
    x, got = torch.zeros(64, 64, dtype=torch.bfloat16), []
    model = tiles(x, 64)

    class Meanwhile(dict):
        def get(self, key, default=None):
            launch_tiles._metadata[model.kind] = "known now"
            return lambda *given: got.append(given[9:]), "code", "metadata"

    for name, value in (("machine_code", Meanwhile()), ("_metadata", {}), ("encoded", {})):
        monkeypatch.setattr(launch_tiles, name, value)
    monkeypatch.setattr(launch_tiles, "make_tensordesc_arg", lambda x, known: [known])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    launch_tiles.launch_tiles("kernel", (1, 1, 1), 4, (model, x), (5,), ())
    assert got == [("known now", x.data_ptr(), 5)]
