"""RWKV-7's fused passes of few heads, whose sequences are cut into segments, on the CPU."""

import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import NAMES, in_float64, make, near, with_raw
from test_wkv7_hopper_training import LIMIT, trained

from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.wkv7 import few, wkv7_reference

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from support.wkv7_fused import KERNELS, simulator

from rwkv_lessons.wkv7.chunked.hopper import cut, forward, reverse
from warplens.gluon import GluonFault

# A rounding to bfloat16 of o or states, and of what the identity becomes. The interpreter cuts a
# sum in float32 off where a GPU rounds it, which is twice as much.
STATES = 6e-3


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    for module, launch, name in KERNELS:
        monkeypatch.setattr(module, launch, simulator(Mutable(getattr(module, name))))


def cut_into(monkeypatch, G, beside=False):
    """beside: the identity is swept by more warps of the same programs, not by other programs."""
    for module in (forward, reverse):
        monkeypatch.setattr(module, "segments_for", lambda *_: G)
    if beside:
        for module in (forward, reverse):
            monkeypatch.setattr(module, "programs_for", lambda r, n, _: (n, cut.BESIDE.value))


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("w", [-0.02, "mixed", -math.inf])
def test_values_and_gradients_are_those_of_the_recurrence(w, beside, monkeypatch):
    cut_into(monkeypatch, 2, beside)
    x = make(2, 128, 1, 64, 64, w, torch.bfloat16)
    near(trained(x), in_float64(x), LIMIT)


@pytest.mark.parametrize("beside", [False, True])
def test_more_segments_a_scale_and_decays_of_a_parameter(beside, monkeypatch):
    cut_into(monkeypatch, 4, beside)
    x = with_raw(make(1, 512, 2, 64, 64, 0.0, torch.bfloat16), "clamp")
    x[6] = None
    options = {"scale": 0.3, "decay": "clamp"}
    names = [name for name in NAMES if name != "ds0"]
    near(trained(x, **options), in_float64(x, **options), LIMIT, names)


@pytest.mark.parametrize("beside", [False, True])
def test_states_are_those_before_each_tile(beside, monkeypatch):
    cut_into(monkeypatch, 4, beside)
    x = make(1, 512, 1, 64, 64, -0.002, torch.bfloat16)
    o, s1, states, _ = forward.forward(*x, None, 1.0, "log", True)
    state = x[6].double()
    for tile, first in enumerate(range(0, 512, 64)):
        near([states[tile].mT], [state[0]], STATES, [f"state before tile {tile}"])
        tokens = (y[:, first : first + 64].double() for y in x[:6])
        want, state = wkv7_reference(*tokens, state)
        near([o[:, first : first + 64]], [want], STATES, [f"o of tile {tile}"])
    near([s1], [state], STATES, ["s1"])


@pytest.mark.parametrize(
    ("module", "name", "phase"),
    [
        (forward, "wkv7_hopper_kernel", "phase"),
        (reverse, "wkv7_reverse_kernel", "turn // STAGES % 2"),
    ],
)
def test_a_tile_that_the_identity_still_needs_is_not_loaded_over(module, name, phase, monkeypatch):
    """Without the wait for its warps, the simulator finds a mistake."""
    cut_into(monkeypatch, 2, beside=True)
    kernel = Mutable(getattr(module, name))
    wait = f"mbarrier.wait(applied.index(i), {phase}, pred=beside)"
    kernel.mistake(wait, "pass", inside="apply_maps")
    monkeypatch.setattr(module, "launch", simulator(kernel))
    with pytest.raises(GluonFault, match="before the wait for it"):
        trained(make(1, 768, 1, 64, 64, -0.1, torch.bfloat16))


@pytest.mark.parametrize(
    ("heads", "T", "segments"),
    [
        (64, 32768, 2),
        (16, 32768, 8),
        (1, 32768, 16),
        (67, 32768, 1),
        (64, 4096, 2),
        (40, 2048, 2),
        (32, 2048, 4),
        (64, 1024, 1),
        (40, 1024, 2),
        (8, 8192, 16),
        (8, 4096, 8),
        (8, 1024, 4),
        (8, 512, 1),
        (8, 1152, 2),
        (16, 4095, 1),
        (64, 6016, 2),
    ],
)
def test_as_many_segments_as_fill_a_gpu(heads, T, segments):
    r = torch.empty(1, T, heads, 64, device="meta")
    assert cut.segments_for(r, None) == segments
    assert cut.segments_for(r, torch.tensor([0, T])) == 1
    assert few.is_cut(heads, T, 132) == (segments > 1)


def test_the_identity_has_programs_of_its_own_while_sms_are_free():
    r = torch.empty(1, 64, 1, 64, device="meta")
    assert cut.programs_for(r, 640, 0) == (640, 0)
    assert cut.programs_for(r, 80, 40) == (120, cut.APART.value)
    assert cut.programs_for(r, 80, 53) == (80, cut.BESIDE.value)
