"""What we count is what the hardware counted."""

import inspect
import re

import pytest
from numba import cuda

from rwkv_lessons.bench import counters
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.records.lookup import record
from rwkv_lessons.report.tables import BLOCKS
from rwkv_lessons.report.write import MARKERS

CSV = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","kernel","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","1,028"
"0","1","kernel","smsp__inst_executed_op_global_red.sum","inst","256"
"1","1","shared","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","14"
"""
EXACT = ["load_requests", "load_sectors", "store_requests", "store_sectors", "atomic_requests"]
# Their loop runs along global memory, and lanes leave it after different turns.
ALONG_MEMORY = re.compile("(naive)$")


def test_ncu_csv_is_read_launch_by_launch():
    assert counters.parse(CSV) == [
        {"load_requests": 1028, "atomic_requests": 256},
        {"load_requests": 14},
    ]


def test_a_wheel_has_no_kernels_to_count(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["counters"])
    monkeypatch.setattr(counters, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="counters: only the library is installed here"):
        counters.main()


def recorded():
    """(ladder, row) of every rung that hardware has counted."""
    found = []
    for ladder in counters.SHAPES:
        try:
            found += [(ladder, row) for row in record(counters.name_of(ladder)).rows]
        except LookupError:
            pass
    return found


@pytest.mark.parametrize("ladder, row", recorded(), ids=lambda x: getattr(x, "method", x))
def test_global_memory_is_counted_exactly(ladder, row):
    mine = counters.ours(ladder, row.method)
    if ALONG_MEMORY.search(row.method):
        (rung,) = (rung for rung in counters.rungs(ladder) if rung.method == row.method)
        mine = counters.counts(unrolled(rung.kernel), rung.grid, rung.block, rung.arrays)
    theirs = dict.fromkeys(EXACT, 0) | row.counters
    assert {name: mine[name] for name in EXACT} == {name: theirs[name] for name in EXACT}


def unrolled(kernel):
    """The kernel with its innermost loop `while …: …; u += 1` as the compiler has it.

    Four turns at a time, and the one to three that are left by themselves: lanes that are done
    sooner wait for the others, and then take theirs. That is three requests more for an array.
    """
    source = inspect.getsource(kernel.py_func).partition("\n")[2]
    loop = re.compile(r"^( *)while (.*\b(\w+)\b.*):\n((?:\1    .*\n)+?)\1    (\w) \+= 1\n", re.M)
    (found,) = (m for m in loop.finditer(source))
    indent, condition, _, body, u = found.groups()

    def turn(n):
        return re.sub(rf"\b{u}\b", f"({u} + {n})", body)

    def left(n):
        return f"{indent}if {condition.replace(u, f'({u} + {n})', 1)}:\n{turn(n)}"

    four = "".join(map(turn, range(4)))
    text = f"{indent}while {condition.replace(u, f'({u} + 3)', 1)}:\n{four}{indent}    {u} += 4\n"
    text += "".join(map(left, range(3)))
    scope = dict(kernel.py_func.__globals__)
    exec(source.replace(found[0], text), scope)
    return cuda.jit(scope[kernel.py_func.__name__])


@pytest.mark.parametrize("ladder, row", recorded(), ids=lambda x: getattr(x, "method", x))
def test_bank_conflicts_are_within_two_percent(ladder, row):
    mine = counters.ours(ladder, row.method)
    wavefronts = row.counters["shared_load_wavefronts"] + row.counters["shared_store_wavefronts"]
    for name in ("shared_load_conflicts", "shared_store_conflicts"):
        assert abs(mine[name] - row.counters[name]) <= 0.02 * wavefronts


@pytest.mark.derived("tables of docs/warplens_model.md", "python -m rwkv_lessons.report")
@pytest.mark.parametrize("ladder", counters.SHAPES)
def test_the_page_shows_what_is_counted(ladder):
    page = (ROOT / "docs/warplens_model.md").read_text(encoding="utf-8")
    shown = {match[2]: match[3] for match in MARKERS.finditer(page)}[counters.name_of(ladder)]
    assert shown == BLOCKS[counters.name_of(ladder)](None) + "\n"


def test_every_kernel_of_time_x_is_counted():
    naive, shared = (counters.ours("timex", rung.method) for rung in counters.rungs("timex")[:2])
    B, C, T = counters.SHAPES["timex"]
    warps = B * C * T // 32
    assert naive["store_requests"] == shared["store_requests"] == warps
    assert naive["shared_load_instructions"] == 0 < shared["shared_load_instructions"]
    assert len(counters.rungs("timex")) == 10
