"""The race: what is read from a profiler's trace, what is kept of it, and every way's answer."""

import json
from types import SimpleNamespace

import pytest
import torch

from rwkv_lessons.bench.commands import race
from rwkv_lessons.bench.measure import LIMITS
from rwkv_lessons.bench.timing import BUDGET_MS
from rwkv_lessons.lab.lessons.lesson_18 import pictures
from rwkv_lessons.operations.entries import lesson
from rwkv_lessons.records.schema import Measurement, Provenance
from rwkv_lessons.records.traces import (
    TraceEvent,
    load_traces,
    read_events,
    save_traces,
    summed_up,
    write_chrome,
)
from rwkv_lessons.report.tables import BLOCKS

CPU = torch.device("cpu")
WHERE = Provenance("NVIDIA H200", "1", "0", "2000-01-01", "c", "x", "y", torch="0")
EVENTS = (
    TraceEvent("call", "call", 0, 60),
    TraceEvent("launch", "cudaLaunchKernel", 10, 4),
    TraceEvent("kernel", "scan", 20, 19),
    TraceEvent("launch", "cudaMemcpyAsync", 15, 3),
    TraceEvent("kernel", "Memcpy DtoD", 40, 1),
)


def read(*events):
    """What is read of a profiler's events, each of (category, name, start, µs, thread if not 1)."""
    keys = ("cat", "name", "ts", "dur", "tid")
    trace = [{"ph": "X", "tid": 1} | dict(zip(keys, x, strict=False)) for x in events]
    trace.append({"ph": "i", "cat": "kernel", "name": "no duration", "ts": 130})
    return read_events({"traceEvents": trace})


def made(method="recurrent", wall_us=41, shape=pictures.SHORT, replayed=False, events=EVENTS):
    return summed_up(method, shape, "float16", wall_us, events, replayed)


def test_launches_and_kernels_of_the_call_are_read_and_nothing_else():
    events = read(
        ("user_annotation", "call", 100, 60),
        ("cpu_op", "aten::mul", 105, 9),
        ("cuda_driver", "cuLaunchKernelEx", 110, 4),
        ("cuda_runtime", "cudaStreamSynchronize", 115, 40),
        ("kernel", "scan", 120.5, 19),
        ("gpu_memcpy", "Memcpy DtoD", 140, 1),
        ("kernel", "before", 90, 1),
    )
    assert [(e.cat, e.name, e.ts) for e in events] == [
        ("call", "call", 0), ("launch", "cuLaunchKernelEx", 10),
        ("kernel", "scan", 20.5), ("kernel", "Memcpy DtoD", 40),
    ]  # fmt: skip


def test_without_a_gpu_the_operators_that_touch_elements_stand_for_kernels():
    events = read(
        ("user_annotation", "call", 0, 100),
        ("cpu_op", "aten::matmul", 1, 30),
        ("cpu_op", "aten::bmm", 2, 20),
        ("cpu_op", "aten::as_strided", 3, 1),
        ("cpu_op", "aten::sum", 40, 10),
        ("cpu_op", "aten::fill_", 42, 2),
        ("cpu_op", "aten::mul", 45, 2, 2),
    )
    assert [e.name for e in events] == ["call", "aten::bmm", "aten::fill_", "aten::mul"]


def test_the_totals_are_of_all_events_also_where_the_first_are_kept():
    many = [EVENTS[0]._replace(dur=9000)]
    many += [TraceEvent("kernel", "ab"[n % 2], 10 + n, 1 + n % 2) for n in range(1000)]
    trace = summed_up("x", pictures.SHORT, "float16", 9000.0, many, most=100)
    assert trace.launches == 1000 and trace.device_us == 1500 and trace.longest == ("b", 1000)
    assert len(trace.events) == 100 and not trace.whole and made().whole
    assert made().copy_us == 1 and made().longest == ("scan", 19)
    with pytest.raises(ValueError, match="CUPTI"):
        summed_up("x", pictures.SHORT, "float16", 1.0, EVENTS[:2])


def test_traces_are_read_as_they_were_written(tmp_path):
    row = Measurement("recurrent", pictures.SHORT, "float16", host_ms=0.041, error=2e-4)
    traces = [made(), made(replayed=True)]
    save_traces("wkv6-race", WHERE, (row,), traces, tmp_path)
    assert load_traces("wkv6-race", "NVIDIA H200", tmp_path) == (WHERE, traces)
    with pytest.raises(LookupError, match="no record 'absent'"):
        load_traces("absent", "NVIDIA H200", tmp_path)


def test_a_kept_trace_is_written_as_the_profiler_would(tmp_path):
    write_chrome(made(), tmp_path / "x/a.pt.trace.json")
    whole = json.loads((tmp_path / "x/a.pt.trace.json").read_text())
    kernels = [e for e in whole["traceEvents"] if e.get("cat") == "kernel"]
    assert [e["args"]["device"] for e in kernels] == [e["pid"] for e in kernels] == [0, 0]
    assert whole["deviceProperties"][0]["id"] == 0  # TensorBoard's plugin asks for both
    assert sorted(read_events(whole)) == sorted(made().events)


def test_every_way_of_a_cpu_gives_the_recurrences_answer(tmp_path):
    found = list(race.race(CPU, [(1, 9, 2, 8)], 1, tmp_path))
    assert [row.method for row, _ in found] == [race.LOOP, "wkv6 on the CPU"]
    for row, trace in found:
        assert not row.problem and row.error < LIMITS["float16"] and trace.launches > 5
        assert pictures.table([trace], (1, 9, 2, 8))
    files = [pictures.events_of(file) for file in sorted(tmp_path.glob("*.pt.trace.json"))]
    assert [events[0]["name"] for events in files] == ["call", "call"]


@pytest.mark.parametrize("heads_first", [False, True])
def test_every_layout_gives_the_same_answer(heads_first):
    from rwkv_lessons.wkv6 import wkv6

    common = race.inputs((2, 5, 3, 4), "float32")
    wrap = race._from_heads_first if heads_first else race._from_model
    for f in (race._raw(wkv6), race._with_log_decay(wkv6)):
        entrant = race.Entrant("x", wrap(f), "", heads_first=heads_first)
        o, s = entrant.call(*race.inputs_of(entrant, common))
        assert race.error_of(entrant, o, race.expected(common)) < 1e-5
        assert s.shape == (2, 3, 4, 4)


def test_the_lessons_loop_is_the_recurrence():
    loop, common = lesson(race.LESSON).torch_loop, race.inputs((2, 5, 3, 4), "float32")
    entrant = race.Entrant("x", loop, "")
    assert race.error_of(entrant, loop(*common)[0], race.expected(common)) < 1e-5


def test_a_wrong_way_is_not_timed():
    wrong = race.Entrant(
        "wrong", lambda r, *_: (r, None), f"solutions/{race.LESSON}.py::torch_loop"
    )
    broken = race.Entrant("broken", lambda *_: 1 / 0, wrong.source)
    common = race.inputs((1, 3, 2, 4))
    for entrant, said in ((wrong, "not timed"), (broken, "ZeroDivisionError")):
        ((row, trace),) = race._runs(entrant, common, (1, 3, 2, 4), race.expected(common), 1, None)
        assert trace is None and said in row.problem


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_times_of_a_cpu_are_not_recorded():
    options = SimpleNamespace(record="", quick=False, commit=None, traces=None)
    with pytest.raises(ValueError, match="no NVIDIA GPU"):
        race.command(options)


def test_pictures_and_tables_say_what_they_show(tmp_path, capsys):
    assert pictures.recorded(folder=tmp_path) == [] and "not recorded" in capsys.readouterr().out
    assert pictures.timelines([]) is None and pictures.fastest([]) is None
    slow = made("chunked", 66, events=(*EVENTS[:2], TraceEvent("kernel", "c", 50, 16)))
    traces = [made(), slow, made("recurrent", 26, replayed=True)]
    assert pictures.fastest(traces) == ("chunked", "recurrent")
    lines = pictures.table(traces).splitlines()
    assert lines[1].split() == "recurrent 41 26 19.0 20.0 2 5% 51% 5,260 64".split()
    assert str(pictures.timelines(traces)).startswith("recurrent: 41 µs, 20 of them in 2 kernels")
    assert str(pictures.timelines(traces, replayed=True)).startswith("recurrent, graph: 26 µs")
    whole, *rest = pictures.unprofiled(traces[0])
    assert whole["dur"] == traces[0].wall_us and rest[-1]["ts"] + rest[-1]["dur"] == whole["dur"]
    assert {e["cat"] for e in rest} == {"kernel"} and len(rest) == traces[0].launches
    assert "19.0 µs     1 × scan" in pictures.kernels(traces[0])
    pictures.save_traces(traces, tmp_path / "traces")
    assert len(list((tmp_path / "traces").glob("*.pt.trace.json"))) == 3
    save_traces("wkv6-race", WHERE, (), traces, tmp_path)
    assert "| recurrent | 41 | 26 | 19.0 | 20.0 |" in BLOCKS["wkv6-race"](tmp_path)


@pytest.mark.gpu
def test_every_way_and_its_graph_gives_the_recurrences_answer_on_this_gpu():
    found = list(race.race(torch.device("cuda"), [(1, 20, 4, 64)], min(BUDGET_MS, 5)))
    assert len(found) == 10 and all(trace for _, trace in found)
    for row, trace in found:
        assert not row.problem and row.error < LIMITS["float16"]
        launches = sum(event.cat == "launch" for event in trace.events)
        assert launches == 1 if trace.replayed else launches >= 1
