"""GPUs other than the one that was measured: tiles that fit, kernels that start."""

import os
import subprocess
import sys

import pytest

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.records import fingerprint as source
from rwkv_lessons.runtime.architectures import ARCHITECTURES, KIB
from warplens import architectures as limits_of_an_sm
from warplens.compiled.occupancy import occupancy

pytest.importorskip("triton")
import torch  # noqa: E402

from rwkv_lessons.bench.commands import matrix  # noqa: E402
from rwkv_lessons.mla.decode.splits import decode_tile  # noqa: E402
from rwkv_lessons.runtime import devices  # noqa: E402
from rwkv_lessons.runtime.devices import H200, gpu_like  # noqa: E402
from rwkv_lessons.wkv6 import method_for  # noqa: E402
from rwkv_lessons.wkv6.chunked import forward as chunked  # noqa: E402
from rwkv_lessons.wkv7 import method_for as wkv7_method_for  # noqa: E402

SMALL = [name for name, limits in ARCHITECTURES.items() if limits.shared_bytes_block == 99 * KIB]


@pytest.mark.derived("records/data/compiled.json", "make matrix ARGS=--missing")
def test_the_table_is_fresh_whole_and_within_bounds():
    """In a process of its own: here Triton interprets. A few kernels are compiled once more."""
    command = [sys.executable, "-m", "rwkv_lessons.bench", "matrix", "--check"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    output = {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=source.ROOT, env=environment, **output)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_architecture_has_kernels_of_every_operation():
    _, rows = matrix.load()
    rooms = {operation.package for operation in OPERATIONS.values()} | {"sequences"}
    rooms -= {"distributed"}  # whose kernels are still to change
    for architecture in ARCHITECTURES:
        assert {row.kernel.split(".")[0] for row in rows if architecture in row.found} == rooms


@pytest.mark.parametrize("architecture", SMALL)
def test_no_block_wants_more_than_99_kilobytes(architecture):
    _, rows = matrix.load()
    shared = [row.found[architecture][2] for row in rows if architecture in row.found]
    assert shared and max(shared) <= 99 * KIB


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cuda_kernels_of_64_keys_keep_their_state_in_registers(architecture):
    _, rows = matrix.load()
    spills = [
        row.found[architecture][1]
        for row in rows
        if row.kernel.startswith("wkv6.cuda.")
        and row.call.startswith("wkv6 cuda 64 ")
        and architecture in row.found
    ]
    # The reverse sweep has 255 registers. On Blackwell it spills 2 and 21 numbers more: addresses,
    # and what it keeps from one group to the next. The loop over tokens reads none of them.
    limit = {"sm_100": 8, "sm_120": 84}.get(architecture, 0)
    assert spills and max(spills) <= limit


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_hopper_runs_kernels_written_for_it(architecture):
    _, rows = matrix.load()
    of_hopper = {row.kernel for row in rows if "hopper" in row.kernel and architecture in row.found}
    assert len(of_hopper) == (15 if architecture == "sm_90" else 0)


def test_rows_out_of_bounds_are_found():
    fine = {"sm_89": [255, 5120, 99 * KIB]}
    assert not list(matrix.CompiledCall("k", "c", "d", fine).problems())
    for worse in ([256, 0, 0], [255, 5121, 0], [255, 0, 99 * KIB + 1]):
        assert (
            len(list(matrix.CompiledCall("k", "c", "d", fine | {"sm_86": worse}).problems())) == 1
        )


def test_on_an_h200_nothing_became_smaller():
    wide = chunked.tile_for(512, 4096, 256, 256, torch.bfloat16, H200)
    assert wide[-2:] == (8, (256, 256, 256, 64, 16)) and chunked.largest(torch.float32, H200) == 256
    assert chunked.tile_for(512, 4096, 64, 64, torch.bfloat16, H200)[-1] == (64, 64, 64, 64, 64)
    assert decode_tile(40, 512, 64, torch.bfloat16, H200)[:2] == (64, 64)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "sm_90"])
def test_other_gpus_take_smaller_tiles_or_another_method(architecture):
    gpu = gpu_like(architecture)
    C = 16 if ARCHITECTURES[architecture].shared_bytes_block == 227 * KIB else 32
    assert chunked.tile_for(512, 4096, 64, 64, torch.bfloat16, gpu)[-1] == (64, 64, 64, 64, C)
    assert chunked.tile_for(512, 4096, 128, 128, torch.bfloat16, gpu)[-1] == (128, 128, 128, 32, 16)
    assert decode_tile(40, 512, 64, torch.bfloat16, gpu)[:2] == (16, 32)
    of_256 = {"gradients": True, "dtype": torch.bfloat16, "T": 4096, "heads": 64, "size": 256}
    assert method_for("cuda", **of_256, gpu=H200) == "chunked"
    assert method_for("cuda", **of_256, gpu=gpu) == "cuda"
    assert method_for("cuda", **of_256, gpu=gpu, packed=True) == "recurrent"


def test_a_smaller_sm_holds_fewer_warps():
    """By hand: 256 threads are 8 warps, of which 64 or 48 fit; 64 registers allow 32."""
    assert occupancy(64, 256, arch="sm_90").blocks_per_sm == 4
    assert occupancy(32, 256, arch="sm_90").blocks_per_sm == 8
    assert occupancy(32, 256, arch="sm_89").blocks_per_sm == 6


def test_the_h200_that_kernels_are_tuned_on_stands_in_the_table():
    assert gpu_like("sm_90") == H200
    assert "H200" in limits_of_an_sm.ARCHITECTURES["sm_90"].gpus


def test_warplens_knows_the_same_architectures():
    two = [
        {name: (x.sms, x.shared_bytes_block) for name, x in table.items()}
        for table in (ARCHITECTURES, limits_of_an_sm.ARCHITECTURES)
    ]
    assert two[0] == two[1]


def test_lessons_count_with_the_table_where_no_library_is():
    """A laptop without torch's or numba's compilers still has the limits."""
    code = "import sys, warplens.architectures; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=source.ROOT, capture_output=True)
    assert done.stdout.strip() == b"False"


def test_host_code_leaves_a_kernels_fingerprint_alone():
    """What launches a kernel is recorded as arguments; a table is not stale for its wording."""
    kernel = "rwkv_lessons/wkv6/chunked/forward.py::wkv6_chunked_fwd_kernel"
    with_host = source.fingerprint(kernel)
    assert source.fingerprint(kernel, statements=False) != with_host
    reached = {name for _, name in source._reached([kernel], statements=False)}
    assert {
        "product",
        "FITS_TO_END",
        "state_before_segment",
    } <= reached and "tile_for" not in reached


def test_a_method_is_chosen_for_this_gpu_unless_another_is_given(monkeypatch):
    of_256 = {"gradients": True, "dtype": torch.bfloat16, "T": 4096, "heads": 64, "size": 256}
    monkeypatch.setattr(devices, "current", lambda: gpu_like("sm_89"))
    assert method_for("cuda", **of_256) == "cuda"
    assert method_for("cuda", **of_256, gpu=H200) == "chunked"
    of_64 = of_256 | {"size": 64}
    assert wkv7_method_for("cuda", **of_64) == "chunked"
    assert wkv7_method_for("cuda", **of_64, gpu=H200) == "fused"
