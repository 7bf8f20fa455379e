"""How numba reads and writes each dtype: numba's type, to float32, and back."""

import torch
from numba import float32

from ...runtime.launch_numba import bfloat16_to_float32, float32_to_bfloat16, types

IN_MEMORY = {
    torch.float32: (types.float32, float32, float32),
    torch.float16: (types.float16, float32, types.float16),
    torch.bfloat16: (types.uint16, bfloat16_to_float32, float32_to_bfloat16),
}
