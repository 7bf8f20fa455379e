"""The calls of flash-linear-attention, against the recurrence in float64 and against FLA itself."""

import copy
import inspect
import pickle
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from support.wkv6_cases import HALF, SINGLE, make, near

from rwkv_lessons.interop import fla
from rwkv_lessons.interop.fla import chunk_rwkv6, fused_recurrent_rwkv6, patch_fla

BOTH = [chunk_rwkv6, fused_recurrent_rwkv6]
NAMES = "o ht dr dk dv dw du dh0".split()
ENDS = [0, 4, 4, 11, 17]


def oracle(x, scale, ends=None, reverse=False):
    """o and the final states, one scalar token at a time: FLA's definition, not our reference."""
    r, k, v, w, u, h0 = (y.double() for y in x)
    B, T = r.shape[:2]
    ends = ends or [b * T for b in range(B + 1)]
    r, k, v, w = (y.flatten(0, 1) for y in (r, k, v, w))  # [B·T, H, N]
    outputs, states = [None] * len(r), []
    for n, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        h = h0[n]
        for t in reversed(range(start, end)) if reverse else range(start, end):
            kv = k[t][:, :, None] * v[t][:, None, :]
            outputs[t] = (scale * r[t][:, :, None] * (h + u[:, :, None] * kv)).sum(1)
            h = w[t].exp()[:, :, None] * h + kv
        states.append(h)
    return torch.stack(outputs).view(B, T, *v.shape[1:]), torch.stack(states)


def given(ends=None, dtype=torch.float64, device="cpu"):
    x = make(1 if ends else 2, 17, 2, 4, 6, "mixed", dtype, device=device)
    states = make(len(ends) - 1 if ends else 2, 1, 2, 4, 6, "mixed", dtype, device=device)[5]
    return [*x[:5], states]


def results(f, x, do, dh):
    leaves = [y.detach().requires_grad_() for y in x]
    o, h = f(*leaves)
    return o, h, *torch.autograd.grad([o, h], leaves, [do.to(o.dtype), dh.to(h.dtype)])


@pytest.mark.parametrize("ends", [None, ENDS])
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("f", [*BOTH, "reverse"])
def test_values_and_gradients_are_those_of_the_definition(f, scale, ends):
    """Also the final state's gradient, which FLA's recurrent function drops."""
    reverse = f == "reverse"
    more = {"reverse": True} if reverse else {}
    f = fused_recurrent_rwkv6 if reverse else f
    x = given(ends)
    do, dh = torch.randn_like(x[2]), torch.randn_like(x[5])
    cu_seqlens = torch.tensor(ends) if ends else None

    def ours(*y):
        return f(*y[:5], scale, y[5], output_final_state=True, cu_seqlens=cu_seqlens, **more)

    want = results(lambda *y: oracle(y, scale or 4**-0.5, ends, reverse), x, do, dh)
    near(results(ours, x, do, dh), want, 1e-12, NAMES)


@pytest.mark.parametrize("f", BOTH)
def test_defaults_are_those_of_fla(f):
    """The scale is K ** -0.5, there is no state before, and none is returned."""
    *x, h0 = given()
    o, h = f(*x)
    assert h is None
    near([o], oracle([*x, torch.zeros_like(h0)], 0.5), 1e-12)


def test_signatures_are_those_of_fla():
    names = "r k v w u scale initial_state output_final_state".split()
    recurrent, chunk = (list(inspect.signature(f).parameters) for f in BOTH[::-1])
    assert recurrent == [*names, "reverse", "cu_seqlens"]
    assert chunk == [*names, "cu_seqlens", "cu_seqlens_cpu", "kwargs"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    x = given(dtype=dtype)
    o, h = chunk_rwkv6(*x[:5], 1.0, x[5], True)
    assert (o.dtype, h.dtype) == (dtype, torch.float32)
    near([o, h], oracle(x, 1.0), {"o": HALF[dtype], "": SINGLE})
    mixed = [x[0], x[1].float(), *x[2:]]
    o, h = chunk_rwkv6(*mixed[:5], 1.0, mixed[5], True)
    assert o.dtype == dtype
    near([o, h], oracle(mixed, 1.0), {"o": HALF[dtype], "": SINGLE})


@pytest.mark.parametrize(
    "f, change, error, message",
    [
        (chunk_rwkv6, {"head_first": False}, DeprecationWarning, "head_first has been removed"),
        (chunk_rwkv6, {"chunksize": 64}, TypeError, "has no argument 'chunksize'"),
        (chunk_rwkv6, {"chunk_size": 48}, ValueError, "chunk_size must be a power of 2, got 48"),
        (fused_recurrent_rwkv6, {"head_first": True}, TypeError, "head_first"),
        (chunk_rwkv6, {"w": None}, TypeError, "w must be a tensor, got NoneType"),
        (chunk_rwkv6, {"u": torch.zeros(4, 2)}, ValueError, r"u must be \[H, K\] = \[2, 4\]"),
        (chunk_rwkv6, {"initial_state": 1}, TypeError, "initial_state must be .* got int"),
        (
            fused_recurrent_rwkv6,
            {"initial_state": torch.zeros(2, 2, 6, 4)},
            ValueError,
            r"initial_state must be \[B, H, K, V\] = \[2, 2, 4, 6\], got \[2, 2, 6, 4\]",
        ),
        (
            chunk_rwkv6,
            {"cu_seqlens": torch.tensor([0, 17])},
            ValueError,
            "B = 1 if cu_seqlens is given, got B = 2",
        ),
    ],
)
def test_what_is_wrong_is_named(f, change, error, message):
    x = dict(zip("r k v w u".split(), given(dtype=torch.float32), strict=False))
    with pytest.raises(error, match=message):
        f(**x | change)


def test_the_sizes_of_fla_are_accepted():
    x = given()
    got = chunk_rwkv6(*x[:5], chunk_size=32, cu_seqlens_cpu=torch.tensor([0, 17]))
    near(got[:1], chunk_rwkv6(*x[:5])[:1], 1e-15)


# The patch, on modules that bind the names where FLA 0.6.0 does.


@pytest.fixture
def modules(monkeypatch):
    def theirs(*args):
        return "theirs"

    names = "fla fla.ops fla.ops.rwkv6 fla.ops.rwkv6.chunk fla.ops.rwkv6.fused_recurrent fla.layers"
    found = {name: ModuleType(name) for name in [*names.split(), "fla.layers.rwkv6", "flask"]}
    for name, module in found.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        for function in fla.FUNCTIONS:
            holds_one = not name.endswith("chunk") or function == "chunk_rwkv6"
            if name not in ("fla", "fla.layers") and holds_one:
                setattr(module, function, theirs)
    return found


def test_a_patch_and_the_way_back(modules):
    layer, other = modules["fla.layers.rwkv6"], modules["flask"]
    patch = patch_fla()
    assert layer.chunk_rwkv6.replacement is chunk_rwkv6
    assert layer.fused_recurrent_rwkv6.replacement is fused_recurrent_rwkv6
    assert modules["fla.ops.rwkv6.chunk"].chunk_rwkv6 is layer.chunk_rwkv6
    assert not hasattr(modules["fla"], "chunk_rwkv6") and other.chunk_rwkv6() == "theirs"
    assert "fla.layers.rwkv6.chunk_rwkv6" in repr(patch)
    patch.undo()
    assert repr(patch) == "<Patch of nothing>"
    assert all(f() == "theirs" for m in modules.values() for f in vars(m).values() if callable(f))
    with patch_fla():
        assert layer.chunk_rwkv6.replacement is chunk_rwkv6
    assert layer.chunk_rwkv6() == "theirs"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_patches_the_last_to_be_undone_restores(modules, order):
    patches = patch_fla(), patch_fla()
    patches[order[0]].undo()
    patches[order[0]].undo()  # a second time does nothing
    assert modules["fla.layers.rwkv6"].chunk_rwkv6.stands
    patches[order[1]].undo()
    assert all(f() == "theirs" for m in modules.values() for f in vars(m).values() if callable(f))


def test_a_patched_function_is_pickled_and_copied_by_its_name(modules):
    layer = modules["fla.layers.rwkv6"]
    with patch_fla():
        stand_in = layer.chunk_rwkv6
        sent = pickle.dumps([stand_in])
        assert pickle.loads(sent) == [stand_in] and copy.deepcopy(stand_in) is stand_in
    assert pickle.loads(sent)[0]() == "theirs"  # where no patch stands


def test_undo_reaches_modules_imported_meanwhile(modules, monkeypatch):
    """They took the functions from modules that were patched, and gave them names of their own."""

    def wrapped(*args):
        return "wrapped"

    modules["fla.layers.rwkv6"].chunk_rwkv6 = wrapped
    patch = patch_fla()
    for name in ("fla.models.late", "flask.late"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for function in fla.FUNCTIONS:
            setattr(sys.modules[name], function, getattr(modules["fla.ops.rwkv6"], function))
    sys.modules["flask.late"].mix = modules["fla.ops.rwkv6"].chunk_rwkv6
    sys.modules["flask.late"].wanted = chunk_rwkv6
    monkeypatch.setitem(sys.modules, "fla.missing", None)  # so Python notes a failed import
    patch_fla().undo()
    assert sys.modules["fla.models.late"].chunk_rwkv6.stands
    patch.undo()
    for name in ("fla.models.late", "flask.late"):
        assert all(getattr(sys.modules[name], f)() == "theirs" for f in fla.FUNCTIONS)
    assert sys.modules["flask.late"].mix() == "theirs"
    assert sys.modules["flask.late"].wanted is chunk_rwkv6  # taken from here, not from FLA
    with patch_fla():
        assert sys.modules["fla.models.late"].chunk_rwkv6.original() == "theirs"
    assert sys.modules["fla.models.late"].chunk_rwkv6() == "theirs"
    assert modules["fla.layers.rwkv6"].chunk_rwkv6() == "wrapped"


def test_a_patch_without_fla_says_so():
    if find_spec("fla"):
        pytest.skip("FLA is installed here")
    with pytest.raises(ModuleNotFoundError, match="fla"):
        patch_fla()


# FLA itself.


@pytest.mark.gpu
@pytest.mark.parametrize("ends", [None, [0, 64, 300]])
@pytest.mark.parametrize("name", fla.FUNCTIONS)
def test_fla_itself_gives_the_same(name, ends):
    theirs = getattr(pytest.importorskip("fla.ops.rwkv6"), name)
    x = make(1 if ends else 2, 300, 2, 64, 64, -0.3, torch.float32, device="cuda")
    x[5] = make(2, 1, 2, 64, 64, dtype=torch.float32, device="cuda")[5]
    cu_seqlens = torch.tensor(ends, device="cuda") if ends else None
    for scale in (None, 1.0):
        options = {"scale": scale, "output_final_state": True, "cu_seqlens": cu_seqlens}
        given, state = x[:5], x[5]
        want = theirs(*given, initial_state=state, **options)
        got = fla.FUNCTIONS[name](*given, initial_state=state, **options)
        near(got, [y.double() for y in want], 2e-3)  # FLA's chunks compute in TF32: 8e-4 measured


@pytest.mark.gpu
def test_fla_reversed_gives_the_same():
    theirs = pytest.importorskip("fla.ops.rwkv6").fused_recurrent_rwkv6
    x = make(1, 70, 2, 64, 64, dtype=torch.float32, device="cuda")
    ends = torch.tensor([0, 20, 70], device="cuda")
    state = make(2, 1, 2, 64, 64, dtype=torch.float32, device="cuda")[5]
    for cu_seqlens, s0 in ((None, x[5]), (ends, state)):
        given = (*x[:5], 1.0, s0, True, True, cu_seqlens)
        want = theirs(*given)
        near(fused_recurrent_rwkv6(*given), [y.double() for y in want], 1e-5)


@pytest.fixture
def layer(monkeypatch):
    """FLA's layer, the kernels around the recurrence in torch: they would autotune for minutes."""
    layers = pytest.importorskip("fla.layers.rwkv6")
    monkeypatch.setattr(
        layers, "token_shift", lambda x, _=None: torch.nn.functional.pad(x, (0, 0, 1, -1)) - x
    )
    torch.manual_seed(0)
    layer = layers.RWKV6Attention(hidden_size=256, num_heads=2, layer_idx=0)
    layer.g_norm, layer.gate_fn = torch.nn.LayerNorm(256), torch.nn.functional.silu
    return layer


def through(layer, x):
    """The output of a text, of its parts after one another from the cache, and x's gradient."""
    leaf = x.clone().requires_grad_()
    o, *_ = layer(leaf)
    (o.float() * torch.linspace(-1, 1, o.shape[-1], device=x.device)).sum().backward()
    past = pytest.importorskip("fla.models.utils").Cache()
    with torch.no_grad():
        parts = [
            layer(part, past_key_values=past, use_cache=True)[0]
            for part in x.split([40, 18, 1, 1], 1)
        ]
    return o, torch.cat(parts, 1), leaf.grad


@pytest.fixture
def lengths(monkeypatch):
    """T of every call that reaches `wkv6`."""
    seen, ours = [], fla.wkv6
    monkeypatch.setattr(fla, "wkv6", lambda *a, **k: seen.append(a[0].shape[1]) or ours(*a, **k))
    return seen


def test_flas_layer_works_on_a_cpu(layer, lengths):
    """Where it has no kernels of its own; decoding from the cache continues the text."""
    with patch_fla():
        o, parts, gradient = through(layer, torch.randn(1, 60, 256))
    assert lengths == [60, 40, 18, 1, 1]
    torch.testing.assert_close(parts, o, rtol=1e-4, atol=1e-5 * float(o.abs().max()))
    assert torch.isfinite(gradient).all() and gradient.norm() > 0


@pytest.mark.gpu
def test_flas_layer_runs_on_our_kernels(layer, lengths):
    """With the patch as without; with up to 64 tokens FLA takes its recurrent function."""
    layer, x = layer.cuda().bfloat16(), torch.randn(1, 60, 256).cuda().bfloat16()
    want = through(layer, x)
    assert not lengths
    with patch_fla():
        got = through(layer, x)
    assert lengths == [60, 40, 18, 1, 1]
    for a, b in zip(got, want, strict=True):  # bf16 through five projections: 2⁻⁸ a few times
        assert (a.double() - b.double()).norm() <= 0.03 * b.double().norm()
