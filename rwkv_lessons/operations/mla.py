"""Latent attention: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations import work as least
from rwkv_lessons.operations.entries import Headline, Operation, own

DEEPSEEK_SHAPE = (64, 4096, 128, 512, 64, 128)
# (H, R, P, V): heads, rank, sizes of rope and value.
MINICPM3, DEEPSEEK_V3, ITS_8TH_PART = (40, 256, 32, 64), (128, 512, 64, 128), (16, 512, 64, 128)

MLA_DECODE = Operation(
    "mla-decode",
    "time a query token against a latent cache",
    "mla",
    shapes=(
        *((*x, *MINICPM3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 1024))),
        (64, 16384, *MINICPM3),
        *((*x, *DEEPSEEK_V3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 4096))),
        (64, 4096, *ITS_8TH_PART),
    ),
    quick=(2, 70, 3, 32, 16, 16),
    work=least.mla_decode,
    letters="B, N, H, R, P, V",
    command="mla_decode:command",
    dtypes=("bfloat16",),
    verified_as={"paged": "decode"},
    records=(own("mla-decode", "mla-decode", 90, "beside torch"),),
    headline=Headline(
        "MLA decode, DeepSeek-V3", "mla-decode", "decode", "torch absorbed", "torch", DEEPSEEK_SHAPE
    ),
    public=("mla", "__getattr__"),
)

MLA_LADDER = Operation(
    "mla-ladder",
    "time a step of latent attention, rung by rung",
    "mla",
    shapes=((64, 4096, 40, 64, 256, 32, 64), (1, 16384, 40, 64, 256, 32, 64)),
    quick=(2, 20, 3, 16, 32, 16, 16),
    work=least.mla_ladder,
    letters="B, N, H, K, R, P, V",
    command="mla_ladder:command",
    dtypes=("bfloat16",),
    records=(
        replace(own("mla-ladder", "mla-ladder"), holds=(("27_split_decode.combine", "bfloat16"),)),
    ),
)

MLA_PREFILL = Operation(
    "mla-prefill",
    "time latent attention of a whole prompt",
    "mla",
    shapes=(  # MiniCPM3, the first with the seed's 32 heads, and DeepSeek-V3
        (1, 2048, 32, 64, 256, 32, 64),
        (1, 4096, 40, 64, 256, 32, 64),
        (16, 1024, 40, 64, 256, 32, 64),
        (1, 2048, 128, 128, 512, 64, 128),
    ),
    quick=(1, 20, 2, 16, 32, 16, 16),
    work=least.mla_prefill,
    letters="B, T, H, K, R, P, V",
    command="mla_prefill:command",
    dtypes=("bfloat16",),
    records=(own("mla-prefill", "mla-prefill", 90, "milliseconds by shape"),),
    public=("mla_prefill",),
    verified_as={"kernel": "prefill", "prefill absorbed": "prefill"},
)

MLA_GENERATE = Operation(
    "mla-generate",
    "time a whole MiniCPM3-4B that writes text",
    "mla",
    shapes=((1, 512, 20), (16, 512, 20), (1, 4096, 20), (16, 4096, 20)),
    quick=(2, 6, 5),
    work=None,
    letters="sequences, tokens in, tokens out",
    command="mla_generate:command",
    dtypes=(),  # none to choose: the model's own
    records=(
        own("mla-generate", "mla-generate", 120, "tokens per second by shape", "transformers"),
    ),
    verified_as={"latent": "mla", "latent graph": "mla"},
)
