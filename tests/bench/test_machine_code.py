"""What is looked for in machine code is found where it is, and only there."""

import threading

import pytest

pytest.importorskip("triton")

from rwkv_lessons.bench.commands import matrix
from rwkv_lessons.bench.commands.matrix import CompiledCall, load
from rwkv_lessons.bench.machine_code import compile
from rwkv_lessons.bench.machine_code.barriers import allocated, shared_barriers
from rwkv_lessons.bench.machine_code.faults import faults
from rwkv_lessons.bench.machine_code.instructions import instructions
from rwkv_lessons.bench.machine_code.look import known_to
from rwkv_lessons.bench.machine_code.spills import allowed, too_many
from rwkv_lessons.runtime import launch_numba
from rwkv_lessons.runtime.assembler import Assembler
from rwkv_lessons.runtime.launch_numba import linked, types
from warplens.compiled import from_numba

# ptxas 12.9.86 of the sweep that came out wrong (docs/designs_wkv7.md), without what is between.
# R183 comes back as the upper half of R182's pair, is taken for another number, and the product
# reads R180 to R183.
LOST = """
        /*12c50*/                   LDL.LU.64 R182, [R1+0xb80] ;
        /*12c60*/                   LDL.LU.64 R180, [R1+0xb78] ;
        /*12c70*/                   LDL.LU R183, [R1+0x1bc] ;
        /*12d30*/                   IMAD.MOV.U32 R3, RZ, RZ, R183 ;
        /*15580*/                   HMMA.1688.F32.TF32 R92, R180, R116, R92 ;
        /*15590*/                   EXIT ;
"""
# As ptxas 12.8.93 has it: the number for R3 comes back in a register of its own.
KEPT = LOST.replace("R183", "R184")

PRODUCTS = """
        /*3560*/                   WARPGROUP.ARRIVE ;
        /*3570*/                   HGMMA.64x16x8.F32.TF32 R24, R48, gdesc[UR12], RZ, !UPT ;
        /*3580*/                   HGMMA.64x16x8.F32.TF32 R24, R52, gdesc[UR20], R24, gsb0 ;
        /*3590*/                   FMUL R56, R133, R81 ;
        /*35a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*35b0*/                   FMUL R48, R133, R24 ;
        /*35c0*/                   EXIT ;
"""


def test_a_pair_restored_and_half_overwritten_before_its_product_is_found():
    (fault,) = faults(LOST)
    assert "R183 of 12c50 LDL.LU.64" in fault and "before 15580 HMMA" in fault


def test_the_same_with_the_number_in_a_register_of_its_own_is_right():
    assert faults(KEPT) == []


def test_a_half_that_was_read_may_be_overwritten():
    read = "/*12c68*/  STG.E desc[UR4][R2.64], R183 ;\n        /*12c70*/"
    assert faults(LOST.replace("/*12c70*/", read)) == []


def test_the_fault_is_found_on_every_path_and_on_none_that_cannot_be_taken():
    around = LOST.replace("/*12c70*/", "/*12c68*/  @P0 BRA `(.L_x_1) ;\n        /*12c70*/")
    around = around.replace("        /*15580*/", ".L_x_1:\n        /*15580*/")
    assert len(faults(around)) == 1  # where P0 is false
    never = around.replace("@P0 BRA", "BRA")
    assert faults(never) == []


def test_products_that_are_waited_for_are_right():
    assert faults(PRODUCTS) == []


@pytest.mark.parametrize(
    "early",
    [
        "FMUL R48, R133, R81",  # the left factor of the first, of the same group
        "FMUL R55, R133, R81",  # of the second, its last register
        "FADD R2, R31, R31",  # a sum is read
        "LDS.64 R30, [R2]",  # and written, by the upper half of a pair
        "HGMMA.64x16x8.F32.TF32 R64, R24, gdesc[UR20], RZ, !UPT",  # and is a left factor
    ],
)
def test_registers_of_products_in_flight_are_not_to_be_touched(early):
    found = faults(PRODUCTS.replace("FMUL R56, R133, R81", early))
    assert found and all("while it is in flight" in fault for fault in found)


def test_a_wait_that_leaves_the_newest_group_open_ends_the_older_only():
    newer = "HGMMA.64x16x8.F32.TF32 R64, R56, gdesc[UR20], RZ, !UPT, gsb0"
    two = PRODUCTS.replace("FMUL R56, R133, R81", newer).replace("gsb0, 0x0", "gsb0, 0x1")
    assert faults(two) == []
    (fault,) = faults(two.replace("FMUL R48, R133, R24", "FMUL R48, R133, R64"))
    assert "3590" in fault


def test_operands_are_as_wide_as_their_opcode_says():
    code = instructions(LOST + PRODUCTS)
    assert code[0].writes == (182, 183)
    assert code[4].reads == ((180, 181, 182, 183), (116, 117), (92, 93, 94, 95))
    assert code[8].writes == tuple(range(24, 32)) and code[8].reads[0] == (52, 53, 54, 55)


@pytest.mark.parametrize(
    ("text", "writes", "reads"),
    [
        ("I2F R7, R8", (7,), ((8,),)),
        ("F2F.F64.F32 R4, R8", (4, 5), ((8,),)),
        ("LDSM.16.MT88.4 R24, [R39+UR8]", (24, 25, 26, 27), ((39,),)),
        ("STG.E.128 desc[UR8][R10.64], R24", (), ((10, 11), (24, 25, 26, 27))),
        ("IMAD.WIDE.U32 R8, R10, 0x4, R6", (8, 9), ((10,), (6, 7))),
        ("SHFL.BFLY PT, R0, R15, 0x10, 0x1f", (0,), ((15,),)),
        ("LDTM.16dp32bit_t0_t15.x8 R4, tmem[UR58+0x10]", tuple(range(4, 12)), ()),
        ("ISETP.GE.AND P2, PT, R5, RZ, PT", (), ((5,),)),
    ],
)
def test_an_instruction_is_read_by_its_opcode(text, writes, reads):
    (found,) = instructions(f"/*0010*/ {text} ;")
    assert (found.writes, found.reads) == (writes, reads)


TTGIR = """
#tile = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#line = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32, ttg.target = "cuda:90"} {
  tt.func public @kernel(%to: !tt.ptr<f32>) {
    %zero = arith.constant dense<0.000000e+00> : tensor<64x64xf32, #blocked>
    %barrier = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #line, #smem, mutable>
    ttng.init_barrier %barrier, 1 : !ttg.memdesc<1xi64, #line, #smem, mutable>
    GIVEN_UP
    %tile = ttg.local_alloc %zero : (tensor<64x64xf32, #blocked>) -> !ttg.memdesc<64x64xf32, #tile, #smem>
    %again = ttg.local_load %tile : !ttg.memdesc<64x64xf32, #tile, #smem> -> tensor<64x64xf32, #blocked>
    %place = tt.splat %to : !tt.ptr<f32> -> tensor<64x64x!tt.ptr<f32>, #blocked>
    tt.store %place, %again : tensor<64x64x!tt.ptr<f32>, #blocked>
    tt.return
  }
}
"""  # noqa: E501


def test_a_tile_that_is_given_the_bytes_of_a_lasting_barrier_is_found():
    """Triton gives it them: nothing waits for the barrier, so that it seems to be dead."""
    ptx = 87
    (fault,) = shared_barriers(allocated(TTGIR.replace("GIVEN_UP", ""), "sm_90", ptx))
    assert "memdesc<1xi64" in fault and "memdesc<64x64xf32" in fault
    given_up = "ttng.inval_barrier %barrier : !ttg.memdesc<1xi64, #line, #smem, mutable>"
    assert not shared_barriers(allocated(TTGIR.replace("GIVEN_UP", given_up), "sm_90", ptx))


def test_each_program_of_a_cluster_has_its_part_of_a_tile():
    """16 KB of a tile and a barrier behind 8 KB: right if two programs have half of it each."""
    text = """
#tile = #ttg.nvmma_shared<{swizzlingByteWidth = 128, elementBitWidth = 16, CGALayout = [[BASIS]]}>
%tile = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<128x64xbf16, #tile>
%full = ttg.local_alloc {allocation.offset = 8192 : i32} : () -> !ttg.memdesc<1xi64, #line, #smem>
"""
    assert not shared_barriers(text.replace("BASIS", "1, 0"))
    assert len(shared_barriers(text.replace("BASIS", "0, 0"))) == 1


def row(kernel, *spills):
    return [CompiledCall(kernel, "a call", "d", {"sm_90": [255, n, 0]}) for n in spills]


def test_only_the_kernels_in_the_table_may_spill_and_no_more_than_it_says():
    kernel = "mla.decode.hopper.decode_hopper_kernel"
    assert allowed()[kernel, "sm_90"] == (4, 52)
    assert not list(too_many(row(kernel, 0, 52, 40, 24, 24)))
    (said,) = too_many(row(kernel, 56))
    assert "up to 56 bytes" in said and "allows 4, and 52 bytes" in said
    assert list(too_many(row(kernel, 4, 4, 4, 4, 4)))  # one launch more
    assert list(too_many(row("timex.cuda.forward.some_kernel", 4)))
    assert not list(too_many(row("timex.cuda.forward.some_kernel", 0)))


def test_what_is_compiled_spills_no_more_than_the_table_says():
    assert not list(too_many(load()[1]))


def test_ptx_is_given_to_an_older_assembler_as_the_version_that_it_knows():
    known = [Assembler("ptxas", v, "a test") for v in ("12.9.86", "13.1.80")]
    written = "//\n.version 9.0\n.target sm_90a\n"
    assert known_to(written, known[0]) == written.replace("9.0", "8.8")
    assert known_to(written, known[1]) == written


def test_a_launch_with_a_fault_is_refused_by_the_assembler_that_makes_it(monkeypatch):
    """The commands, with machine code that is given."""
    ones = {v: Assembler("ptxas", v, "a test") for v in ("12.9.86", "13.1.80")}
    log = "ptxas info    : Used 255 registers, 8 bytes spill stores"
    monkeypatch.setattr(compile, "assemblers", lambda: ones)
    monkeypatch.setattr(compile, "assembler", lambda: ones["13.1.80"])
    monkeypatch.setattr(compile, "assembled", lambda ptx, architecture, one: (log, one.version))
    monkeypatch.setattr(compile, "wrong_code", lambda code: ["lost"] if code == "12.9.86" else [])
    said, wrong = compile.looked_at(".version 8.8\n", "sm_90")
    assert said == log and wrong == ["sm_90, ptxas 12.9.86 (a test): lost"]


@pytest.mark.skipif(bool(from_numba.missing()), reason=f"{from_numba.missing()}")
def test_numbas_device_functions_are_compiled_without_a_gpu():
    """numba by itself asks the current device what to compile them for."""
    from numba import cuda
    from numba.cuda import dispatcher

    @cuda.jit(device=True, forceinline=True)
    def twice(x):
        return x + x

    @cuda.jit
    def kernel(x):
        x[0] = twice(x[0])

    @cuda.jit
    def wrong(x):
        x[0] = twice(x, x)

    ask, pointer = dispatcher.get_current_device, (types.CPointer(types.float32),)
    for capability in ((8, 0), (9, 0)):
        *_, log = linked(kernel, pointer, 32, capability, verbose=True)
        assert "for 'sm_{}{}'".format(*capability) in log
    with pytest.raises(Exception, match="twice"):
        linked(wrong, pointer, 32, (9, 0))
    assert dispatcher.get_current_device is ask


@pytest.mark.skipif(bool(from_numba.missing()), reason=f"{from_numba.missing()}")
def test_numba_compiles_for_warplens_or_for_a_launch_and_not_for_both_at_once():
    """Each answers for the current device while it compiles; numba's lock keeps them apart."""
    inside, left = threading.Event(), threading.Event()

    def other():
        with launch_numba._compiling_for((8, 0)):
            inside.set()
        left.set()

    thread = threading.Thread(target=other)
    with from_numba._compiling_for((9, 0, "a")):
        thread.start()
        assert not inside.wait(0.2)
    assert left.wait(10)
    thread.join()


def test_a_table_without_the_librarys_assembler_is_refused(monkeypatch):
    monkeypatch.setattr(matrix, "load", lambda: ("versions", []))
    monkeypatch.setattr(matrix, "versions", lambda: "versions")
    monkeypatch.setattr(matrix, "recorded_launches", dict)
    monkeypatch.setattr(matrix, "assembler", lambda: Assembler("ptxas", "13.1.80", "a test"))
    monkeypatch.setattr(matrix, "compile_all", lambda keys: ([], []))
    monkeypatch.setattr(matrix, "assemblers_of", lambda: ["12.9.86"])
    with pytest.raises(ValueError, match=r"13\.1\.80 \(a test\) was not looked at"):
        matrix.check()
    monkeypatch.setattr(matrix, "assemblers_of", lambda: ["12.9.86", "13.1.80"])
    matrix.check()
