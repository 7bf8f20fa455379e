"""What we count is what the hardware counted."""

import pytest

from rwkv_lessons.lab.machine_code import counters
from rwkv_lessons.records.lookup import record

CSV = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","kernel","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","1,028"
"0","1","kernel","smsp__inst_executed_op_global_red.sum","inst","256"
"1","1","shared","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","14"
"""
EXACT = ["load_requests", "load_sectors", "store_requests", "store_sectors", "atomic_requests"]


def test_ncu_csv_is_read_launch_by_launch():
    assert counters.parse(CSV) == [
        {"load_requests": 1028, "atomic_requests": 256},
        {"load_requests": 14},
    ]


def recorded():
    try:
        return record(counters.NAME).rows
    except LookupError:
        return ()


@pytest.mark.parametrize("row", recorded(), ids=lambda row: row.method)
def test_global_memory_is_counted_exactly(row):
    mine = counters.ours(row.method)
    assert {name: mine[name] for name in EXACT} == {name: row.counters[name] for name in EXACT}


@pytest.mark.parametrize("row", recorded(), ids=lambda row: row.method)
def test_bank_conflicts_are_within_two_percent(row):
    mine = counters.ours(row.method)
    wavefronts = row.counters["shared_load_wavefronts"] + row.counters["shared_store_wavefronts"]
    for name in ("shared_load_conflicts", "shared_store_conflicts"):
        assert abs(mine[name] - row.counters[name]) <= 0.02 * wavefronts
