"""The profile of the torch loop: what is read from a trace, what is kept, what a lesson shows."""

import json

import pytest
import torch

from rwkv_lessons.bench.commands.profile import command, profile_loop, read_kernels, summary
from rwkv_lessons.inputs import rwkv5_inputs
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.lessons.lesson_02.pictures import operators, queue, recorded, timeline
from rwkv_lessons.lab.pictures.operation import memory, roof
from rwkv_lessons.records.lookup import GPU
from rwkv_lessons.records.profiles import Kernel, Profile, brief, load_profiles, save_profiles
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
MUL = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> "
    "> >(at::TensorIteratorBase&)::{lambda(int)#1}>(int, ...)"
)
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4>(float)"
KERNELS = (Kernel(GEMV, 0, 4.0), Kernel(ADD, 10.5, 1.0), Kernel(MUL, 12.0, 2.0))
PROFILE = Profile((1, 3, 2, 4), "float32", 99.0, KERNELS)


def test_kernels_are_read_from_a_trace_in_the_order_they_ran():
    def event(category, ts):
        return {"cat": category, "name": category, "ts": ts, "dur": 1.5}

    events = [event("kernel", 7.25), event("cpu_op", 1.0), event("gpu_memset", 4.0), {"name": "x"}]
    kernels = read_kernels({"traceEvents": events})
    assert kernels == (Kernel("gpu_memset", 0, 1.5), Kernel("kernel", 3.25, 1.5))
    assert read_kernels({"traceEvents": events[1:2]}) == ()


def test_the_totals():
    assert PROFILE.kernel_us == 7 and PROFILE.tokens == 3
    assert PROFILE.elementwise_share == pytest.approx(3 / 7)
    assert PROFILE.top() == [(GEMV, 1, 4.0), (MUL, 1, 2.0), (ADD, 1, 1.0)]


def test_names_are_cut_to_what_the_kernel_does():
    assert brief(ADD) == "vectorized_elementwise_kernel (CUDAFunctor_add)"
    assert brief(MUL) == "elementwise_kernel (MulFunctor)"
    assert brief(GEMV) == "gemv2T_kernel_val"
    assert brief("void cutlass::Kernel2<cutlass_80_simt_sgemm_32x128_8x5_nn_align1>(P)") == (
        "cutlass_80_simt_sgemm_32x128_8x5_nn_align1"
    )


def test_a_profile_is_read_as_it_was_written(tmp_path):
    where = Provenance("Test GPU", "1.0", "0.0", "2000-01-01", "none", "made up", "none")
    row = Measurement("torch_loop", PROFILE.shape, "float32", host_ms=0.099, error=1e-7)
    file = save_profiles("try-profile", where, (row,), [PROFILE], tmp_path)
    again, profiles = load_profiles("try-profile", "Test GPU", tmp_path)
    assert again == where and profiles == {"float32": PROFILE}
    first = json.loads(file.read_text())["profiles"][0]
    assert first["launches_per_token"] == 1 and first["kernel_us"] == 7
    with pytest.raises(LookupError, match="no record 'absent-profile'"):
        load_profiles("absent-profile", "Test GPU", tmp_path)


def test_the_summary_has_the_numbers():
    text = summary(PROFILE)
    assert "3 kernels launched, 1.0 per token" in text
    assert "7 µs in kernels, 99 µs" in text and "43% of the kernel time" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ValueError, match="no NVIDIA GPU"):
        command(None)


@pytest.mark.gpu
def test_every_token_launches_the_same_kernels():
    short, _ = profile_loop("wkv5", "float32", (1, 4, 2, 64))
    long, error = profile_loop("wkv5", "float32", (1, 12, 2, 64))
    assert error < 1e-5
    assert (len(long.kernels) - len(short.kernels)) % 8 == 0
    assert 5 <= (len(long.kernels) - len(short.kernels)) / 8 <= 12


def test_operators_are_read_with_their_bytes(tmp_path):
    r, k, v, w, u = rwkv5_inputs(1, 5, 2, 16)
    with torch.profiler.profile(record_shapes=True) as profiler:
        exercises.solutions("01_five_loops").torch_loop(r, k, v, w, u)
    file = tmp_path / "x.trace.json"
    profiler.export_chrome_trace(str(file))
    token = operators(file)[-7:]
    state, row = 4 * 2 * 16 * 16, 4 * 2 * 16  # bytes
    assert token == [
        ("bmm", 2 * row, state),  # k v
        ("mul", row + state, state),  # bonus
        ("add", 2 * state, state),
        ("bmm", row + state, row),  # r
        ("copy_", row, row),
        ("mul", row + state, state),  # decay
        ("add", 2 * state, state),
    ]


def test_pictures_say_what_they_show():
    assert str(timeline(PROFILE, tokens=2, first=0)).startswith("2 kernels of 2 tokens in 12 µs")
    assert timeline(None) is None
    assert "end after 17 µs" in str(queue([2, 2, 2, 2], 5))
    assert "then 192 of other heads" in str(memory((1, 5, 4, 64), h=1))


def test_what_is_not_recorded_is_said(tmp_path, capsys):
    assert recorded(folder=tmp_path) == {}
    assert roof("wkv5", (1, 2, 3, 4), folder=tmp_path) is None
    assert capsys.readouterr().out.count(" yet") == 2


def test_the_roof_is_drawn_from_records(tmp_path, capsys):
    where = Provenance(GPU, "1.0", "0.0", "2000-01-01", "none", "made up", "none")
    ceilings = {"copy_bytes_per_s": 4e12, "fp32_flops_per_s": 6e13, "bf16_flops_per_s": 7e14}
    save(Record("ceilings", where, (), ceilings), tmp_path)
    text = str(roof("wkv5", (8, 4096, 64, 64), folder=tmp_path))
    assert "up to 15.0 operations a byte" in capsys.readouterr().out
    assert "arithmetic is the limit" in text and "the least: 1 ms, 100% of the roof" in text
