"""Other people's packages, each behind a function (*inputs) → run, where it is installed.

An adapter only translates: layouts, the form of the decay, the scale. Whatever it has to copy it
copies once, outside `run`. To add one, write the function and name it in an operation's `peers`.
"""

import os
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from rwkv_lessons.bench.methods import Method, with_gradients
from rwkv_lessons.bench.rwkv_lm import CHECKOUT, clampw, clampw_gradients
from rwkv_lessons.bench.serving_operators import DECAY, rate_of
from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import is_here
from rwkv_lessons.operations.work import MOST_DRAFTS

HOW = {"fla": "tuned with 20 ms a configuration"}  # module → how it is measured
TILELANG = "FLA_TILELANG"  # FLA reads at each call whether it may use its TileLang kernels


def fla_function(name, package="rwkv6"):
    """A function of a package of `fla.ops`, with a short search for its kernels' configurations.

    They try dozens each; Triton would time each of them for an eighth of a second: minutes. What
    another run chose, perhaps at another size or beside other work, is not taken from its cache.
    """
    os.environ.setdefault("FLA_CACHE_RESULTS", "0")  # read when fla is imported
    if find_spec("triton"):
        from triton.runtime.autotuner import Autotuner
        from triton.testing import do_bench

        Autotuner.do_bench = property(lambda _: partial(do_bench, warmup=5, rep=20))
    return getattr(import_module(f"fla.ops.{package}"), name)


def fla_wkv6(r, k, v, w, u, s0=None, *, raw_decay=False):
    """flash-linear-attention's chunks, called as `wkv6` is: o and the final state."""
    w = -w.float().exp() if raw_decay else w
    options = {"scale": 1.0, "initial_state": s0, "output_final_state": True}
    chunk_rwkv6 = fla_function("chunk_rwkv6")
    return chunk_rwkv6(r, k, v, w.to(r.dtype), u.to(r.dtype), **options)


def adapters(name, package, inputs_of=lambda *inputs: inputs, like=2, **options):
    """A function of `fla.ops.<package>` as (*inputs) → run, forward and with gradients.

    Args:
        inputs_of: (*inputs) → the function's own arguments.
        like: which of these has o's shape.
        options: of the function.
    """

    def forward(*inputs):
        f, x = fla_function(name, package), inputs_of(*inputs)
        return lambda: f(*x, **options)[0]

    def both_passes(*inputs):
        return with_gradients(
            partial(fla_function(name, package), **options), inputs_of(*inputs), like
        )

    return forward, both_passes


def with_tilelang(adapter):
    """An adapter of FLA whose calls use its TileLang kernels, where there are some."""

    def make(*inputs):
        run = adapter(*inputs)

        def call():
            before = os.environ.get(TILELANG)
            os.environ[TILELANG] = "1"
            try:
                return run()
            finally:
                del os.environ[TILELANG]
                if before is not None:
                    os.environ[TILELANG] = before

        return call

    return make


def in_one_dtype(r, k, v, w, u, *s0):
    """FLA knows no RWKV-5: that is RWKV-6, the same decay at every token."""
    return r, k, v, w.to(r.dtype).expand_as(r).contiguous(), u.to(r.dtype), *s0


fla_chunk, fla_chunk_gradients = adapters("chunk_rwkv6", "rwkv6", in_one_dtype, scale=1.0)
fla_recurrent, fla_recurrent_gradients = adapters(
    "fused_recurrent_rwkv6", "rwkv6", in_one_dtype, scale=1.0
)
# As FLA's own layer calls it: no decay below RWKV-7's least, chunks of 64.
RWKV7 = {"safe_gate": True, "lower_bound": -DECAY, "chunk_size": 64}
fla_rwkv7_chunk, fla_rwkv7_chunk_gradients = adapters(
    "chunk_rwkv7", "rwkv7", like=3, scale=1.0, **RWKV7
)
# Its TileLang kernels take no chunks of 64 on Hopper.
fla_rwkv7_tilelang, fla_rwkv7_tilelang_gradients = map(
    with_tilelang,
    adapters("chunk_rwkv7", "rwkv7", like=3, scale=1.0, **RWKV7 | {"chunk_size": 32}),
)
fla_tilelang, fla_tilelang_gradients = map(with_tilelang, (fla_chunk, fla_chunk_gradients))
H100, H100_ALT = "rwkv7_clampw_v3_for_h100", "rwkv7_clampw_v3_for_h100_alt"  # files of RWKV-LM
rwkv_lm, rwkv_lm_gradients = partial(clampw, H100), partial(clampw_gradients, H100)
rwkv_lm_alt, rwkv_lm_alt_gradients = partial(clampw, H100_ALT), partial(clampw_gradients, H100_ALT)
# The decay is bounded by -5, as FLA's faster kernels need it.
fla_kda_chunk, fla_kda_chunk_gradients = adapters("chunk_kda", "kda", safe_gate=True)


def fla_step(*inputs):
    """FLA has no function of one token, and its state is not updated in place."""
    f, (*x, s0) = fla_function("fused_recurrent_rwkv6"), in_one_dtype(*inputs)
    return lambda: f(*x, scale=1.0, initial_state=s0, output_final_state=True)


def fla_serving(batch):
    """Of a `Batch` (commands/serving.py): few tokens by the recurrence, others in chunks.

    FLA has no pool: it takes float32 states in order, and returns others.
    """
    package, x = batch.package.replace("wkv", "rwkv"), batch.tokens
    options = {"scale": 1.0, "initial_state": batch.before.float()}
    if package == "rwkv6":
        x = in_one_dtype(*x)
    if batch.longest <= MOST_DRAFTS:
        x = [y.view(batch.of_each()) if y.ndim == 4 else y for y in x]
        name, keeps = "fused_recurrent_rwkv6", batch.longest == 1
        if package == "rwkv7":
            name, (*x, a, b) = "fused_mul_recurrent_rwkv7", x
            x += [-a, rate_of(a, b)]
        options["output_final_state"] = keeps
    else:
        name, more = f"chunk_{package}", RWKV7 if package == "rwkv7" else {}
        options |= {"output_final_state": True, "cu_seqlens": batch.ends.long()} | more
    f = fla_function(name, package)
    return lambda: f(*x, **options)[0]


def flash_rwkv(r, k, v, w, u):
    """flash-rwkv takes the raw decay, w = −exp(raw), and updates a copy of its state."""
    from flash_rwkv import rwkv5_cuda_linear_attention

    B, T, H, N = r.shape
    r, k, v = (x.view(B, T, H * N) for x in (r, k, v))
    raw, u = ((-w).log().flatten().to(r.dtype), u.flatten().to(r.dtype))
    state = r.new_zeros(B, H, N, N).float()
    return lambda: rwkv5_cuda_linear_attention(r, k, v, raw, u, state)[0].view(B, T, H, N)


CONV1D_TOKENS = 2048  # at 8,192 one call of both passes takes seconds


def timex_conv1d(w, k):
    """torch's depthwise convolution, which cuDNN or a kernel of torch's own takes."""
    from torch.nn import functional as F

    T = k.shape[-1]
    if T > CONV1D_TOKENS:
        raise ValueError(f"not timed above {CONV1D_TOKENS:,} tokens")
    return lambda: F.conv1d(F.pad(k, (T - 1, 0)), w[:, None], groups=len(w))


def timex_conv1d_gradients(w, k):
    return with_gradients(lambda *x: timex_conv1d(*x)(), (w, k), like=1)


def peers(operation):
    """The installed peers of an operation's name, as methods, and a line for each of the others."""
    methods, missing = {}, []
    for name, peer in OPERATIONS[operation].peers.items():
        if not is_here(peer.module):
            missing.append(f"{name}: {peer.distribution} is not installed")
            continue
        release = None if peer.module == CHECKOUT else version(peer.distribution)
        of_release = " ".join(filter(None, [peer.distribution, release]))
        note = ", ".join(filter(None, [of_release, HOW.get(peer.module), peer.note]))
        methods[name] = Method(name, globals()[peer.adapter], note=note, precise=False)
    return methods, missing
