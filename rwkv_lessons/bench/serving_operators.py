"""Operators of inference engines beside the serving operations, from libraries compiled elsewhere.

`bench wkv7-serving --operators FILE.so` loads a library that registers operators with torch, and
times those that are known here on the same tokens. Each adapter translates as peers.py says, of a
`Batch` (commands/serving.py); whatever is wrong about a layout shows in the row as an error.
"""

import torch

DECAY = 0.6065306597126334  # RWKV-7's strongest log decay is -DECAY


def before_clamp(w):
    """What RWKV-7's clamp makes the log decay w of, in float32."""
    return torch.logit((w.float() / -DECAY).clamp(0, 1))


def rate_of(a, b):
    """The rate of a = -κ and b = κ · rate."""
    return torch.where(a == 0, 0.0, -b / a)


def albatross(batch, operator, dtype):
    """`wkv_seq` of Albatross, or `forward`, of float32 states; tokens are float16."""
    S, T, H, N = batch.of_each()
    r, w, *others = batch.tokens
    tokens = [x.reshape(S, T, H * N).half().contiguous() for x in (r, before_clamp(w), *others)]
    state, y = batch.before.to(dtype), torch.empty_like(tokens[0])
    elapsed = [torch.zeros(S, dtype=torch.int32, device=r.device)] * (dtype == torch.float16)

    def run():
        operator(S, T, H * N, H, state, *tokens, y, *elapsed)
        return y.view(S, T, H, N)

    return run


def rwkv_package(batch, operator, dtype):
    """`wkv7s` of the rwkv package: one sequence, a raw decay, a float32 state of values × keys."""
    S, T, H, N = batch.of_each()
    if S > 1:
        raise ValueError("takes one sequence a call")
    r, w, *others = batch.tokens
    tokens = [x.reshape(T, H * N).to(dtype).contiguous() for x in (r, (-w.float()).log(), *others)]
    state, y = batch.before[0].float().mT.contiguous(), torch.empty_like(tokens[0])

    def run():
        operator(1, T, H * N, H, state, *tokens, y)
        return y.view(1, T, H, N)

    return run


def rwkv_sglang(batch, operator, dtype):
    """`wkv_decode` of rwkv-sglang: a token of each sequence, on a pool; tokens are float16."""
    if batch.longest > 1:
        raise ValueError("takes one token of each sequence")
    r, w, k, v, a, b = (x.view(batch.of_each()).half() for x in batch.tokens)
    pool, tokens = batch.states.to(dtype), (r, w, k, v, -a, rate_of(a, b))
    return lambda: operator(*tokens, pool, batch.slots, 1.0)


HALF, SHORT, SINGLE = torch.float16, torch.bfloat16, torch.float32
KNOWN = {  # name: namespace, operator, its adapter, dtype of states, of the package's of tokens
    "Albatross float16 state": ("rwkv7_wkv_fp16_v2", "wkv_seq", albatross, HALF),
    "Albatross float32 state": ("rwkv7_wkv_fp32_v2", "forward", albatross, SINGLE),
    "rwkv-sglang float16 state": ("rwkv7_wkv", "wkv_decode", rwkv_sglang, HALF),
    "rwkv-sglang float32 state": ("rwkv7_wkv", "wkv_decode", rwkv_sglang, SINGLE),
    "rwkv float16": ("wkv7s", "forward_fp16", rwkv_package, HALF),
    "rwkv bfloat16": ("wkv7s", "forward_bf16", rwkv_package, SHORT),
}


def operators(files):
    """{name: batch → run} of the operators that are known here and registered by now.

    Args:
        files: libraries to load first.

    Raises:
        ValueError: a file cannot be loaded, or all of them bring no operator that is known.
    """
    for file in files:
        try:
            torch.ops.load_library(file)
        except OSError as problem:
            raise ValueError(f"--operators {file}: {problem}") from None
    adapters = {}
    for name, (space, operator, adapter, dtype) in KNOWN.items():
        if hasattr(getattr(torch.ops, space), operator):
            call = getattr(getattr(torch.ops, space), operator)
            adapters[name] = _bound(adapter, call, dtype)
    if files and not adapters:
        names = ", ".join(sorted({f"{space}::{name}" for space, name, *_ in KNOWN.values()}))
        raise ValueError(f"--operators: needs libraries with at least one of {names}")
    return adapters


def _bound(adapter, call, dtype):
    return lambda batch: adapter(batch, call, dtype)
