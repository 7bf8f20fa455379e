"""A wrong call of a public function ends in an error that names the argument and its value."""

import inspect
import math
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.mla_problem import problem
from support.wkv6_cases import make
from support.wkv7_cases import make as make_7

from rwkv_lessons import mla, timex, wkv5, wkv6, wkv7
from rwkv_lessons.distributed import sequence_parallel
from rwkv_lessons.interop import (
    fla,
    flash_rwkv,
    rwkv_lm,
    rwkv_peft,
    rwkv_v3,
    transformers_mla,
    transformers_rwkv,
    wind_rwkv,
)
from rwkv_lessons.models import rwkv6 as model
from rwkv_lessons.models import tasks

FLAT = torch.ones(1, 3, 128)  # B, T, C: two heads of 64 channels
ENDS = torch.tensor([0, 1, 3])
FEW = torch.ones(1, 3, dtype=torch.int64)  # tokens


def of_wkv6():
    return dict(zip("r k v w u s0".split(), make(1, 3, 2, 4, 4, dtype=torch.float32), strict=True))


def of_wkv5():
    return (x := of_wkv6()) | {"w": x["w"][0, 0]}


def of_wkv7():
    x = make_7(1, 3, 2, 4, 4, dtype=torch.float32)
    return dict(zip("r w k v a b s0".split(), x, strict=True))


def of_step(x):
    s = x.pop("s0")
    return {name: y if name == "u" else y[:, :1] for name, y in x.items()} | {"state": s}


def of_fla():
    x = of_wkv6()
    return x | {"initial_state": x.pop("s0")}


def of_fla_7():
    x = of_wkv7()
    return x | {"initial_state": x.pop("s0")}


def of_fla_delta():
    x = of_fla_7()
    return x | {"kk": x.pop("b")}


def of_kda():
    x = of_wkv7()
    return {"q": x["r"], "k": x["k"], "v": x["v"], "g": x["w"], "beta": torch.ones(1, 3, 2)}


def of_gated():
    return (x := of_kda()) | {"g": x["g"][..., 0]}


def of_mla():
    tensors, options = problem(2, 2, 3, 8, dtype=torch.float32, lengths=[8, 5])
    return dict(zip("q q_rope latent k_rope w_k w_v".split(), tensors, strict=True)) | options


def of_pages():
    tensors, options = problem(2, 2, 3, 8, dtype=torch.float32, lengths=[8, 5], page_size=4)
    return dict(zip("q q_rope latent k_rope w_k w_v".split(), tensors, strict=True)) | options


def of_varlen():
    x = of_wkv7()
    given = {name: y[0] for name, y in x.items() if name != "s0"}
    return given | {"s0": None, "cu_seqlens": ENDS}


def of_rwkv_lm():
    return dict.fromkeys("rwkvab", FLAT) | {"HEAD_SIZE": 64}


def of_flash():
    x = dict.fromkeys(("receptance", "key", "value", "time_decay"), FLAT)
    return x | {"time_first": torch.ones(2, 64), "state": torch.ones(1, 2, 64, 64)}


def of_flash_5():
    return of_flash() | {"time_decay": torch.ones(2, 64)}


def of_time_x():
    return {"w": torch.ones(2, 8), "k": torch.ones(1, 2, 8), "B": 1, "C": 2, "T": 8, "eps": 0.0}


def of_timex():
    return {"w": torch.ones(2, 8), "k": torch.ones(1, 2, 8), "eps": 0.0}


def of_method_for():
    x = {"device": "cpu", "dtype": torch.float32, "T": 9, "heads": 4, "size": 64}
    return x | {"gradients": False}


def of_timex_method_for():
    return {"device": "cpu", "dtype": torch.float32, "T": 9}


def of_sizes():
    return {"vocabulary": 12, "width": 32, "layers": 2, "head": 16}


def of_model():
    return {"sizes": model.Sizes(**of_sizes())}


def of_plan():
    return {"steps": 2}


def on_one_rank(operation=wkv6.wkv6, group=None, timeout=60.0, **given):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sequence_parallel(operation, group, timeout=timeout)(**given)
    finally:
        dist.destroy_process_group()


def learn(**options):
    return list(model.train(**options))


def of_train():
    batch = lambda step: tasks.reversal(step, 2, 3)  # noqa: E731
    return {"model": model.Model(**of_model()), "batch": batch, "plan": model.Plan(1)}


def of_write():
    return {"model": model.Model(**of_model()), "prompt": torch.ones(1, 3).long(), "count": 1}


def of_loss():
    return {"model": model.Model(**of_model()), "tokens": torch.ones(1, 3).long()}


def of_reversal():
    return {"step": 0, "batch": 2, "longest": 3}


def of_reversed_right():
    return {"model": model.Model(**of_model()), "length": 2, "count": 2}


def of_passages():
    return {"step": 0, "batch": 1, "T": 3}


META = torch.ones(1, 3, 2, 4, device="meta")
WHOLE = torch.ones(1, 3, 2, 4, dtype=torch.int64)
NAN, INF = math.nan, math.inf
SCALES = [NAN, INF, "1", None, True, [1.0], torch.tensor(1.0)]
INTEGERS = [0, -5, 2.5, "1", None]
SEQUENCES = [20, [0, 3], "0 3", torch.tensor([0.0, 3.0]), torch.tensor([0, 2]), torch.tensor(3)]
TENSORS = [None, 1.0, "r", [1.0], META, WHOLE, torch.ones(3, 2)]
AND_A_NUMBER = [*TENSORS, torch.tensor(1.0)]

# (function, what makes a right call, {argument: wrong values})
CALLS = [
    (wkv5.wkv5, of_wkv5, {"r": TENSORS, "w": [None, FLAT], "u": [None, 1], "s0": [1, FLAT]}),
    (wkv5.wkv5_reference, of_wkv5, {"v": TENSORS}),
    (wkv6.wkv6, of_wkv6, {"scale": SCALES, "k": TENSORS, "cu_seqlens": SEQUENCES}),
    (wkv6.wkv6, of_wkv6, {"raw_decay": [None, 1, "yes"], "s0": [0, FLAT, [1.0], "s"]}),
    (wkv6.wkv6_doubling, of_wkv6, {"scale": SCALES[:3], "w": TENSORS[:4]}),
    (wkv6.wkv6_step, lambda: of_step(of_wkv6()), {"state": TENSORS[:5], "scale": SCALES}),
    (wkv6.method_for, of_method_for, {"device": ["gpu", None, 0], "T": INTEGERS}),
    (wkv6.method_for, of_method_for, {"dtype": ["float32", None], "heads": INTEGERS}),
    (wkv6.method_for, of_method_for, {"size": INTEGERS, "gradients": [None, 1], "gpu": ["H200"]}),
    (wkv7.wkv7, of_wkv7, {"scale": SCALES, "a": TENSORS, "cu_seqlens": SEQUENCES}),
    (wkv7.wkv7, of_wkv7, {"decay": [None, "exp", 1, ["log"]], "s0": [0, FLAT, [1.0], "s"]}),
    (wkv7.wkv7_wy, of_wkv7, {"scale": SCALES[:3], "w": TENSORS[:4]}),
    (wkv7.wkv7_step, lambda: of_step(of_wkv7()), {"state": TENSORS[:5], "decay": ["exp"]}),
    (wkv7.method_for, of_method_for, {"device": ["gpu", None, 0], "T": INTEGERS}),
    (timex.timex, of_timex, {"w": TENSORS[:5], "k": TENSORS[:5], "eps": [None, NAN, INF, "0"]}),
    (timex.method_for, of_timex_method_for, {"device": ["gpu"], "T": INTEGERS, "dtype": ["f"]}),
    (on_one_rank, of_wkv6, {"operation": [None, "wkv6", torch.add, wkv6.wkv6_step]}),
    (on_one_rank, of_wkv6, {"timeout": ["60", None, 0, -1.0, NAN, INF], "group": ["gloo", 0]}),
    (on_one_rank, of_wkv6, {"r": TENSORS, "u": TENSORS, "s0": [0, FLAT, [1.0], "s"]}),
    (on_one_rank, of_wkv6, {"cu_seqlens": SEQUENCES, "start": [0, 3], "scale": SCALES}),
    (on_one_rank, lambda: of_wkv6() | {"s0": None}, {"cu_seqlens": [ENDS - 1, 2 * ENDS]}),
    (on_one_rank, lambda: of_wkv6() | {"cu_seqlens": ENDS[::2]}, {"start": [-1, 1, 0.0, "0"]}),
    (on_one_rank, lambda: of_wkv7() | {"operation": wkv7.wkv7}, {"a": TENSORS, "decay": ["exp"]}),
    (mla.mla, of_mla, {"q": TENSORS, "w_v": TENSORS[:5], "w_k": TENSORS[1:5], "scale": SCALES}),
    (mla.mla, of_mla, {"lengths": [[8, 5], 8, torch.tensor([9, 5]), torch.tensor([8.0, 5.0])]}),
    (mla.mla, of_mla, {"left_padding": [[0, 0], torch.tensor([-1, 0])], "k_rope": TENSORS}),
    (mla.mla, of_pages, {"block_table": [[0], torch.tensor([[9, 9], [9, 9]])], "lengths": [None]}),
    (mla.mla_absorbed, of_mla, {"latent": TENSORS, "scale": SCALES}),
    (mla.mla_prefill, of_mla, {"latent": TENSORS, "lengths": [[8, 5], torch.tensor([-1, 5])]}),
    (mla.break_even, lambda: {"K": 4, "R": 8, "V": 4}, {"K": INTEGERS, "R": INTEGERS, "V": ["4"]}),
    (fla.chunk_rwkv6, of_fla, {"cu_seqlens": SEQUENCES, "scale": SCALES[:3], "r": TENSORS}),
    (fla.chunk_rwkv6, of_fla, {"chunk_size": [0, 20, "64"], "initial_state": [1, FLAT]}),
    (fla.chunk_rwkv7, of_fla_7, {"cu_seqlens": SEQUENCES, "initial_state": [1, FLAT, "s"]}),
    (fla.chunk_rwkv7, of_fla_7, {"r": AND_A_NUMBER, "v": AND_A_NUMBER}),
    (fla.fused_recurrent_rwkv7, of_fla_7, {"r": AND_A_NUMBER, "v": AND_A_NUMBER}),
    (fla.chunk_rwkv6, of_fla, {"r": AND_A_NUMBER, "v": AND_A_NUMBER}),
    (fla.chunk_kda, of_kda, {"q": TENSORS, "v": TENSORS, "beta": TENSORS}),
    (fla.chunk_gated_delta_rule, of_gated, {"q": TENSORS, "g": TENSORS}),
    (rwkv_peft.RUN_RWKV7_INFCTX, lambda: dict.fromkeys("rkvwab", FLAT) | {"s": None},
     {"s": [1, "s", FLAT], "k": TENSORS}),
    (rwkv_lm.RUN_CUDA_RWKV7g, lambda: dict.fromkeys("qwkvab", FLAT), {"q": TENSORS, "w": TENSORS}),
    (fla.fused_mul_recurrent_rwkv7, of_fla_delta, {"kk": TENSORS, "a": TENSORS, "scale": [NAN]}),
    (wind_rwkv.attn_chunked_cuda, of_wkv7, {"r": TENSORS, "s0": [1, FLAT, "s"]}),
    (wind_rwkv.attn_chunked_cuda_varlen, of_varlen, {"r": TENSORS, "cu_seqlens": SEQUENCES}),
    (wind_rwkv.attn_triton_bighead, of_wkv7, {"dot_prec": [None, "fp8", 16]}),
    (rwkv_lm.RWKV7_CLAMPW_CUDA, of_rwkv_lm, {"HEAD_SIZE": [*INTEGERS, 100], "w": TENSORS}),
    (rwkv_lm.RWKV7_STATE_CLAMPW_CUDA, lambda: of_rwkv_lm() | {"s0": None}, {"s0": [1, "s", FLAT]}),
    (flash_rwkv.rwkv5_cuda_linear_attention, of_flash_5, {"key": TENSORS, "time_first": TENSORS}),
    (flash_rwkv.rwkv6_cuda_linear_attention, of_flash, {"state": TENSORS[1:], "value": TENSORS}),
    (transformers_rwkv.rwkv6_linear_attention, lambda: of_flash() | {"training": False},
     {"receptance": TENSORS, "time_decay": TENSORS}),
    (rwkv_v3.TimeX.apply, of_time_x, {"k": TENSORS[:5], "w": TENSORS[:5], "eps": [None, NAN]}),
    (rwkv_v3.TimeX.apply, of_time_x, {"T": [9, None, "8"]}),
    (model.Sizes, of_sizes, {"width": [*INTEGERS, 33], "layers": INTEGERS, "head": INTEGERS}),
    (model.Sizes, of_sizes, {"vocabulary": INTEGERS}),
    (model.Model, of_model, {"sizes": [None, 12, (12, 32, 2)], "mix": ["wkv6", 1]}),
    (model.Plan, of_plan, {"steps": INTEGERS[1:], "rate": [-1.0, NAN, "1", None]}),
    (model.Plan, of_plan, {"warm_up": [-1, 1.5, "20"], "weight_decay": [-1.0, NAN, "no"]}),
    (model.Plan, of_plan, {"clip": [-1.0, NAN, None]}),
    (learn, of_train, {"model": [None, "m"], "batch": [None, 3], "plan": [None, 5]}),
    (learn, of_train, {"autocast": ["bf16", 16], "every": INTEGERS}),
    (model.write, of_write, {"count": INTEGERS, "temperature": [-1.0, NAN, "hot"]}),
    (model.write, of_write, {"prompt": [None, [1, 2], "text", torch.ones(3), FEW[:, :0]]}),
    (model.write, of_write, {"prompt": [12 * FEW, -FEW], "mix": ["wkv6"]}),
    (model.loss_of, of_loss, {"tokens": [None, [1, 2], torch.ones(1, 3), FEW[:, :1]]}),
    (tasks.reversal, of_reversal, {"step": [-1, 0.5], "batch": INTEGERS, "longest": INTEGERS}),
    (tasks.reversal, of_reversal, {"shortest": [0, 4, "1"]}),
    (tasks.reversed_right, of_reversed_right, {"length": INTEGERS, "count": INTEGERS}),
    (tasks.passages, of_passages, {"batch": INTEGERS, "T": [*INTEGERS, 10**9]}),
    (tasks.spelled, lambda: {"tokens": FEW[0]}, {"tokens": [None, "a", torch.ones(2), FEW]}),
    (tasks.spelled, lambda: {"tokens": FEW[0]}, {"tokens": [-FEW[0]]}),
]  # fmt: skip


def described(value):
    """What a message may say of a value."""
    if not isinstance(value, torch.Tensor):
        return [repr(value), type(value).__name__]
    first = [f"got {value.flatten()[0]}"] if value.device.type == "cpu" and value.numel() else []
    values = [str(value.tolist())] if first else []
    return [str(list(value.shape)), str(value.dtype), str(value.device), "Tensor", *first, *values]


def id_of(function):
    return f"{function.__module__.removeprefix('rwkv_lessons.')}.{function.__name__}"


@pytest.mark.parametrize(
    "function", [transformers_mla.use_latent_mla, transformers_rwkv.patch_rwkv]
)
def test_what_is_no_model_is_named(function):
    for value in (None, "minicpm3", torch.nn.Linear(1, 1)):
        with pytest.raises((TypeError, ValueError), match="model must be .* got ") as error:
            function(value)
        assert type(value).__name__ in str(error.value)


@pytest.mark.parametrize("function, right, wrong", CALLS, ids=lambda x: callable(x) and id_of(x))
def test_a_wrong_call_names_the_argument_its_value_and_what_is_needed(function, right, wrong):
    function(**right())
    silent = []
    for argument, values in wrong.items():
        for value in values:
            try:
                function(**right() | {argument: value})
            except (TypeError, ValueError) as error:
                message = str(error)
            else:
                message = "no error"
            named = re.search(rf"\b{argument}\b", message) and " must " in message
            if not named or not any(text in message for text in described(value)):
                silent.append((argument, value, message))
    assert not silent


def test_a_scale_of_numpy_is_looked_at_after_a_right_one_too():
    x = make(1, 3, 2, 4, 4, dtype=torch.float32)
    for kind in (np.float32, np.float64):
        wkv6.wkv6(*x, scale=kind(1.0))
        with pytest.raises(ValueError, match="scale must be a finite number, got nan"):
            wkv6.wkv6(*x, scale=kind(NAN))


@pytest.mark.parametrize("operation, inputs", [(wkv6.wkv6, make), (wkv7.wkv7, make_7)])
def test_a_sparse_tensor_is_refused_by_its_name(operation, inputs):
    r, *others = inputs(1, 3, 2, 4, 4, dtype=torch.float32)
    operation(r, *others)  # a right call of the same shapes before it changes nothing
    with pytest.raises(TypeError, match="r must be a dense tensor, got one of layout torch.sparse"):
        operation(r.to_sparse(), *others)


@pytest.mark.parametrize("operation, inputs", [(wkv6.wkv6, make), (wkv7.wkv7, make_7)])
@pytest.mark.parametrize("dimensions", [0, 1, 3, 5])
def test_values_of_other_dimensions_are_refused_by_their_name(operation, inputs, dimensions):
    x = list(inputs(1, 3, 2, 4, 4, dtype=torch.float32))
    at = list(inspect.signature(operation).parameters).index("v")
    x[at] = torch.zeros([2] * dimensions, dtype=x[at].dtype)
    with pytest.raises(ValueError, match=r"^v must be \[B, T, H, V\]"):
        operation(*x)


def test_there_are_hundreds_of_them():
    assert sum(len(values) for *_, wrong in CALLS for values in wrong.values()) > 400
