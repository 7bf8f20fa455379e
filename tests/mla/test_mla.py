"""Latent attention: the definition, token by token, and the absorbed form in torch."""

import math
import subprocess
import sys

import pytest
import torch
from support.mla_problem import problem, relative_error

from rwkv_lessons.mla import METHODS, break_even, mla, mla_absorbed, mla_reference

CASES = {  # each spoils something else: see the ten cases that a decode kernel has to pass
    "one token": ((2, 1, 3, 1), {}),
    "odd cache": ((2, 1, 3, 67), {}),
    "absorbed": ((2, 2, 3, 20), {"absorbed": True}),
    "more queries": ((2, 5, 3, 21), {}),
    "prefill": ((1, 9, 2, 9), {}),
    "queries before the first token": ((2, 6, 3, 9), {"lengths": [4, 9]}),
    "lengths": ((4, 1, 3, 33), {"lengths": [33, 1, 0, 17]}),
    "padding": ((3, 1, 3, 33), {"left_padding": [0, 3, 32]}),
    "padded queries": ((3, 4, 3, 12), {"lengths": [12, 9, 8], "left_padding": [10, 0, 8]}),
    "pages": ((3, 2, 3, 50), {"lengths": [50, 16, 17], "page_size": 16}),
    "pages of one": ((2, 1, 3, 9), {"lengths": [9, 4], "page_size": 1}),
    "shared pages": ((3, 1, 3, 40), {"lengths": [40, 33, 32], "page_size": 8, "shared_pages": 2}),
    "loud": ((2, 1, 3, 40), {"loud": 50.0}),
    "silent": ((2, 1, 3, 40), {"loud": 0.0}),
    "one head": ((2, 1, 1, 20), {"R": 20, "P": 1, "K": 3, "V": 5}),
}


@pytest.fixture(params=CASES)
def case(request):
    shape, which = CASES[request.param]
    return problem(*shape, **which)


def by_hand(q, q_rope, latent, k_rope, w_k, w_v, *, scale, **which):
    """o and lse, one query of one head at a time, over a list of the tokens it sees."""
    B, M, H, _ = q.shape
    o, lse = torch.zeros(B, M, H, w_v.shape[1]).double(), torch.full((B, M, H), -math.inf).double()
    table = which.get("block_table")
    for b in range(B):
        end = int(which["lengths"][b]) if "lengths" in which else latent.shape[1]
        start = int(which["left_padding"][b]) if "left_padding" in which else 0

        def at(x, n, b=b):
            return x[b, n] if table is None else x[table[b, n // x.shape[1]], n % x.shape[1]]

        for m in range(M):
            tokens = range(start, end - M + m + 1)
            for h in range(H if len(tokens) else 0):
                c = torch.stack([at(latent, n) for n in tokens])
                r = torch.stack([at(k_rope, n) for n in tokens])
                k = c if w_k is None else c @ w_k[h].T
                s = scale * (k @ q[b, m, h] + r @ q_rope[b, m, h])
                lse[b, m, h] = s.logsumexp(0)
                o[b, m, h] = s.softmax(0) @ (c @ w_v[h].T)
    return o, lse


@pytest.mark.parametrize("method", [mla_reference, mla_absorbed, mla])
def test_is_attention_over_the_tokens_a_query_sees(method, case):
    tensors, which = case
    o, lse = method(*tensors, **which)
    expected, expected_lse = by_hand(*tensors, **which)
    # Sums of some 50 terms in float64, in another order.
    torch.testing.assert_close(o, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(method, dtype):
    tensors, which = problem(2, 2, 3, 40, dtype=dtype, lengths=[40, 33])
    expected, expected_lse = mla_reference(*(x.double() for x in tensors), **which)
    o, lse = METHODS[method](*tensors, **which)
    assert o.dtype == dtype and lse.dtype == torch.float32
    # The arithmetic is float32 on a CPU; what is left is the rounding of o.
    assert relative_error(o, expected) < {4: 1e-6, 2: 4e-3}[dtype.itemsize]
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


def test_gradients_of_the_two_forms_are_the_same():
    tensors, which = problem(3, 3, 2, 14, lengths=[14, 9, 0], left_padding=[2, 0, 0])
    found = []
    for method in (mla_reference, mla_absorbed):
        leaves = [x.clone().requires_grad_() for x in tensors]
        o, lse = method(*leaves, **which)
        g = torch.Generator().manual_seed(1)
        do = torch.randn(o.shape, generator=g, dtype=o.dtype)
        dlse = torch.randn(lse.shape, generator=g, dtype=o.dtype).where(lse.isfinite(), 0)
        found.append(torch.autograd.grad([o, lse], leaves, [do, dlse]))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all() and one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_gradients_are_those_of_the_numbers():
    tensors, which = problem(2, 2, 2, 5, R=4, P=2, K=3, V=3)
    leaves = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(lambda *x: mla_absorbed(*x, **which), leaves)


def test_mla_expands_when_that_is_cheaper():
    # Flops for one token and one head of MiniCPM3 and of DeepSeek-V3, M query rows.
    for K, R, V, P, rows in ((64, 256, 64, 32, 85), (128, 512, 128, 64, 170)):
        for M, cheaper in ((rows, "absorbed"), (rows + 1, "expanded")):
            flops = {
                "absorbed": 2 * M * (2 * R + P),
                "expanded": 2 * M * (K + P + V) + 2 * R * (K + V),
            }
            assert min(flops, key=flops.get) == cheaper
            assert (break_even(K, R, V) < M) == (cheaper == "expanded")
    assert break_even(8, 4, 8) == math.inf


def test_mla_has_gradients():
    tensors, which = problem(1, 1, 2, 6)
    tensors[2] = tensors[2].clone().requires_grad_()
    mla(*tensors, **which)[0].sum().backward()
    assert tensors[2].grad.abs().max() > 0


def test_the_package_works_without_triton():
    """As on macOS and on Windows: the forms in torch, for few queries and for many."""
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from rwkv_lessons.mla import METHODS, mla, mla_decode, mla_prefill\n"
        "assert list(METHODS) == ['reference', 'absorbed']\n"
        "for M in (1, 200):\n"
        "    shapes = (3, 4), (3, 2), (8,), (2,)\n"
        "    q, q_rope, latent, k_rope = (torch.randn(2, M, *shape) for shape in shapes)\n"
        "    given = q, q_rope, latent, k_rope, torch.randn(3, 4, 8), torch.randn(3, 5, 8)\n"
        "    want = METHODS['reference'](*given, scale=0.4)\n"
        "    for method in (mla, mla_decode, mla_prefill):\n"
        "        for got, x in zip(method(*given, scale=0.4), want, strict=True):\n"
        "            torch.testing.assert_close(got, x)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WRONG = {  # name: (what is replaced, error, words of the message)
    "list": ({"q": [1.0]}, TypeError, "q must be a tensor, got list"),
    "integers": (
        {"latent": torch.ones(2, 9, 32, dtype=torch.int32)},
        TypeError,
        "latent must be .* got torch.int32",
    ),
    "mixed": ({"w_v": torch.ones(3, 20, 32)}, TypeError, "w_v must have q's dtype torch.float64"),
    "heads": ({"q_rope": torch.ones(2, 1, 2, 16).double()}, ValueError, r"q_rope .*\[2, 1, 3, 16"),
    "rope": ({"k_rope": torch.ones(2, 9, 8).double()}, ValueError, r"k_rope .*\[2, 9, 16\], got"),
    "rank": ({"w_k": torch.ones(3, 24, 8).double()}, ValueError, r"w_k .*\[3, 24, 32\], got"),
    "not absorbed": ({"w_k": None}, ValueError, "q must be absorbed"),
    "batch": (
        {"latent": torch.ones(3, 9, 32).double()},
        ValueError,
        r"latent .*\[2, 9, 32\], got \[3",
    ),
    "lengths": ({"lengths": torch.ones(3).int()}, ValueError, r"lengths .*\[2\], got \[3\]"),
    "real lengths": ({"lengths": torch.ones(2)}, TypeError, "lengths must be one of int32, int64"),
    "scale": ({"scale": "1"}, TypeError, "scale must be a number, got str"),
    "pages": ({"block_table": torch.ones(2, 1).int()}, ValueError, "lengths must be given"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("method", [*METHODS.values(), mla])
def test_wrong_arguments_are_named(method, name):
    replaced, error, words = WRONG[name]
    tensors, which = problem(2, 1, 3, 9)
    names = ("q", "q_rope", "latent", "k_rope", "w_k", "w_v")
    given = dict(zip(names, tensors, strict=True)) | which | replaced
    with pytest.raises(error, match=words):
        method(**given)


OUT_OF_RANGE = {  # name: (what is replaced, words of the message)
    "longer than the cache": ({"lengths": [9, 13]}, r"lengths .* 0 to N = 12, got \[9, 13\]"),
    "negative length": ({"lengths": [9, -1]}, r"lengths .* 0 to N = 12, got \[9, -1\]"),
    "negative padding": ({"left_padding": [0, -2]}, r"left_padding .* 0 to N = 12, got \[0, -2\]"),
    "no such page": ({"block_table": [[0, 1, 2], [3, 9, 0]]}, r"0 to 8, got 9 at \[1, 1\]"),
    "negative page": ({"block_table": [[0, -1, 2], [3, 4, 0]]}, r"0 to 8, got -1 at \[0, 1\]"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.parametrize("method", [*METHODS.values(), mla])
def test_what_is_out_of_range_is_named(method, name):
    """Cache: nine pages of four tokens, three a sequence."""
    tensors, which = problem(2, 1, 3, 12, lengths=[12, 7], page_size=4)
    which["left_padding"] = torch.tensor([0, 0])
    which["block_table"] = torch.tensor([[0, 1, 2], [3, 4, 2147480000]])  # the last is not needed
    tensors[2:4] = (x.nan_to_num() for x in tensors[2:4])
    method(*tensors, **which)
    replaced, words = OUT_OF_RANGE[name]
    with pytest.raises(ValueError, match=words):
        method(*tensors, **which | {key: torch.tensor(x) for key, x in replaced.items()})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_a_graph_break(backend):
    tensors, which = problem(2, 2, 3, 12, lengths=[12, 7], page_size=4, dtype=torch.float32)
    found = torch.compile(mla, fullgraph=True, backend=backend)(*tensors, **which)
    # The same products, in float32.
    torch.testing.assert_close(found, mla(*tensors, **which), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_nan_reaches_what_the_help_says(name):
    reached = {}
    for n, argument in enumerate(("q", "q_rope", "latent", "k_rope")):
        tensors, options = problem(2, 8, 3, 8, dtype=torch.float32)
        tensors[n][(0, 2, 1, 0) if n < 2 else (0, 5, 1)] = torch.nan
        o, _ = METHODS[name](*tensors, **options)
        reached[argument] = o.isnan().any(-1)  # [B, M, H]
    for x in reached.values():
        assert not x[1].any()  # the other sequence
    for argument in ("q", "q_rope"):
        assert reached[argument].nonzero().tolist() == [[0, 2, 1]]
    assert reached["k_rope"][0, 5:].all() and not reached["k_rope"][0, :5].any()
    assert reached["latent"][0, 5:].all()  # and may reach those before


def test_a_cache_without_pages_is_an_error_that_says_so():
    tensors, which = problem(1, 1, 2, 20, dtype=torch.float32)
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    none = latent.new_empty(0, 4, latent.shape[-1]), k_rope.new_empty(0, 4, k_rope.shape[-1])
    table, lengths = torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="latent and block_table must have pages, got 0 and 3"):
        mla(q, q_rope, *none, w_k, w_v, scale=1.0, lengths=lengths, block_table=table)
