"""How fast a whole model writes: MiniCPM3-4B's own sizes, random weights, greedy.

Five ways, all of them transformers' MiniCPM3, with all its layers:

    eager, sdpa    as it comes, keys and values of the whole cache expanded at every step
    latent         after `use_latent_mla`
    sdpa graph, latent graph
                   one step captured as a CUDA graph over a static cache, then replayed: without
                   the 62 layers of Python, what is left is the device's work

Wall clock of a whole text: the tokens in, at once, and then each token out.
"""

import gc
import time
from functools import cache

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import choose, time_rows
from rwkv_lessons.bench.measure import one_line
from rwkv_lessons.interop.transformers_mla import undo_latent_mla, use_latent_mla
from rwkv_lessons.operations.mla import MLA_GENERATE
from rwkv_lessons.records.schema import Measurement, code

TIMING = "wall clock of one call, after one to warm up"
SMALL = dict(  # a model for a machine without a GPU
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=32,
    qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, max_position_embeddings=64,
)  # fmt: skip
SOURCES = (
    "rwkv_lessons/mla/prefill/prefill.py::mla_prefill",
    "rwkv_lessons/mla/decode/forward.py::mla_decode",
)


def command(options):
    """`python -m rwkv_lessons.bench mla-generate`."""
    chosen, model_on = choose(METHODS, options.methods), cache(make_model)

    def rows(shape, _, device):
        for method in chosen:
            yield measure(model_on(device, options.quick), method, shape)

    time_rows(options, MLA_GENERATE, rows, TIMING)


def make_model(device, small=False):
    """MiniCPM3 with random weights: 62 layers in bfloat16, or two small ones in float32."""
    try:
        from transformers import AutoModelForCausalLM, MiniCPM3Config
    except ImportError:
        raise ValueError("MiniCPM3 needs the transformers package, 5.17 or later") from None
    config = MiniCPM3Config(**SMALL if small else {}, eos_token_id=None)
    torch.manual_seed(0)
    with torch.device(device):
        dtype = torch.float32 if small else torch.bfloat16
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@torch.no_grad()
def measure(model, method, shape):
    """One `Measurement`: host_ms is the whole text; the note says what part the tokens in took."""
    B, T_in, T_out = shape
    weight = model.lm_head.weight
    layers = model.config.num_hidden_layers
    row = {"method": method, "shape": tuple(shape), "dtype": str(weight.dtype).split(".")[-1]}
    if "latent" in method:
        row |= code(*SOURCES)
        use_latent_mla(model)
    else:
        model.set_attn_implementation(method.split()[0])
    tokens = torch.randint(2, model.config.vocab_size, (B, T_in), device=weight.device)
    try:
        write = METHODS[method](model, B, T_in + T_out)
        write(tokens, 2)  # compiles what there is to compile
        first, _ = timed(lambda: write(tokens, 1), weight.device)
        whole, text = timed(lambda: write(tokens, T_out), weight.device)
    except torch.OutOfMemoryError:
        return Measurement(**row, problem="out of memory")
    except Exception as problem:  # of one way: the others go on
        return Measurement(**row, problem=one_line(problem))
    finally:
        undo_latent_mla(model)
        gc.collect()
        torch.cuda.empty_cache()
    assert text.shape == (B, T_out)
    note = f"{layers} layers, random weights; tokens in {first * 1e3:.0f} ms, "
    note += f"{B * T_out / whole:.0f} tokens/s in all"
    return Measurement(**row, n=1, host_ms=whole * 1e3, note=note)


def timed(f, device):
    """Seconds and the result."""
    timing.synchronize(device)
    start = time.perf_counter()
    result = f()
    timing.synchronize(device)
    return time.perf_counter() - start, result


def by_generate(model, B, N):
    def write(tokens, n):
        text = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
            max_new_tokens=n, min_new_tokens=n, pad_token_id=0,
        )  # fmt: skip
        return text[:, tokens.shape[1] :]

    return write


def by_graph(model, B, N):
    """One step over a static cache, captured once; on a CPU it is called again and again."""
    from transformers import StaticCache

    device = model.device
    cache = StaticCache(config=model.config, max_cache_len=N)
    token = torch.zeros(B, 1, dtype=torch.long, device=device)
    position = torch.zeros(1, 1, dtype=torch.long, device=device)
    latent = model.config._attn_implementation == "latent_mla"

    def mask():
        if latent:  # from key 0 to this one, as `latent_mask` says it
            return torch.cat([0 * position, position + 1], 1).int().expand(B, 1, 1, 2)
        return (torch.arange(N, device=device) <= position).expand(B, 1, 1, N)

    def step():
        inputs = {"input_ids": token, "position_ids": position.expand(B, 1)}
        logits = model(**inputs, attention_mask=mask(), past_key_values=cache).logits
        token.copy_(logits[:, -1:].argmax(-1))
        position.add_(1)

    replay = step

    def write(tokens, n):
        nonlocal replay
        cache.reset()
        first = model(tokens, past_key_values=cache, logits_to_keep=1).logits
        token.copy_(first[:, -1:].argmax(-1))
        position.fill_(tokens.shape[1])
        text = [token.clone()]
        if replay is step and device.type == "cuda":
            replay = captured(step)
            return write(tokens, n)  # what was written to capture it is forgotten
        for _ in range(n - 1):
            replay()
            text.append(token.clone())
        return torch.cat(text, 1)

    return write


def captured(step):
    """A replay of `step`, which is run twice before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


METHODS = {
    "eager": by_generate,
    "sdpa": by_generate,
    "latent": by_generate,
    "sdpa graph": by_graph,
    "latent graph": by_graph,
}
