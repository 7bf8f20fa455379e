"""The kernels of the fused RWKV-7 for heads of 64, and what stands in for them on a CPU."""

from rwkv_lessons.wkv7.chunked.hopper import forward, reverse
from rwkv_lessons.wkv7.chunked.hopper import gradients as tiles

KERNELS = (
    (forward, "launch", "wkv7_hopper_kernel"),
    (reverse, "launch", "wkv7_reverse_kernel"),
    (tiles, "launch", "wkv7_tile_gradients_kernel"),
    (tiles, "launch_strong", "wkv7_strong_gradients_kernel"),
)


def simulator(kernel):
    def launch(programs, *args):
        flat = []
        for x in args:  # tensors, numbers and constants; or all of them as they are
            flat += x if isinstance(x, (list, tuple)) and not hasattr(x, "_fields") else [x]
        kernel[(programs,)](*flat, num_warps=4)

    return launch
