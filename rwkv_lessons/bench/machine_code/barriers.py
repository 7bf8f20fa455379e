"""Shared memory that a barrier would have to share: read in what Triton allocates, without a GPU.

To the hardware memory stays a barrier until `mbarrier.inval`. A barrier that a kernel never gives
up (`ttng.inval_barrier`) is one to its end, and nothing else may have its bytes, before or after
its last use: docs/designs_wkv6.md, "A barrier that nobody waits for". Triton gives up those that it
makes itself, and may then use their bytes again.
"""

import math
import re
import tempfile

from rwkv_lessons.runtime.architectures import number_of

OFFSET = re.compile(r"allocation\.offset = (\d+)")
BUFFER = re.compile(r"(%\w+) = ttg\.local_alloc .*memdesc<(?P<type>[^,>]*)(?:, (?P<layout>#\w+))?")
LAYOUT = re.compile(r"^(#\w+) = .*CGALayout = \[((?:\[[\d, ]*\][, ]*)+)\]", re.MULTILINE)
SPLIT = re.compile(r"\[[^\]]*[1-9][^\]]*\]")  # a basis that halves a tile, not [0, 0]
SCRATCH = "tt.func "  # of a function: what it needs for values that it hands on
VIEW = re.compile(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)")
GIVEN_UP = re.compile(r"ttng\.inval_barrier (%\w+)")
TENSOR = re.compile(r"tensor<([^,>]*)")
CAPTURED = re.compile(r"warp_specialize\(([^)]*)\)")
BARRIER = "i64"  # and nothing else in shared memory is one
BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}


def allocated(ttgir, architecture, ptx_version):
    """TTGIR with the offset of everything that Triton puts into shared memory, as text."""
    from triton._C.libtriton import ir, nvidia, passes

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    steps = ir.pass_manager(context)  # as many of the compiler's as there are up to this one
    passes.ttgpuir.add_combine_tensor_select_and_if(steps)
    passes.ttgpuir.add_allocate_warp_groups(steps)
    passes.convert.add_scf_to_cf(steps)
    passes.gluon.add_inliner(steps)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(steps, number_of(architecture), ptx_version)
    steps.run(module, "shared memory")
    return str(module)


def shared_barriers(text):
    """Each fault in a sentence; `text` is what `allocated` returns."""
    roots = dict(VIEW.findall(text))
    programs = {name: 2 ** len(SPLIT.findall(bases)) for name, bases in LAYOUT.findall(text)}

    def root(name):
        return root(roots[name]) if name in roots else name

    given_up = {root(name) for name in GIVEN_UP.findall(text)}
    barriers, others = [], []
    for line in text.splitlines():
        if (at := OFFSET.search(line)) and not line.lstrip().startswith(SCRATCH):
            place = int(at[1]), int(at[1]) + size(line, programs), line.split(" loc(")[0].strip()
            buffer = BUFFER.search(line)
            lasting = buffer and buffer["type"].endswith(BARRIER) and buffer[1] not in given_up
            (barriers if lasting else others).append(place)
    faults = []
    for n, (start, stop, barrier) in enumerate(barriers):
        for other_start, other_stop, other in others + barriers[n + 1 :]:
            if other_start < stop and start < other_stop:
                faults.append(f"bytes of a barrier, {barrier}, are also those of {other}")
    return faults


def size(line, programs):
    """Bytes of a line's buffer; or at most, of what its operation needs meanwhile.

    programs: how many programs of a cluster have a part of what has this layout, by its name.
    """
    if buffer := BUFFER.search(line):
        return _bytes(buffer["type"]) // programs.get(buffer["layout"], 1)
    if captured := CAPTURED.search(line):
        return BYTES["i64"] * len(captured[1].split(","))
    return max(map(_bytes, TENSOR.findall(line)), default=1)


def _bytes(shape):
    """Of "2x64x64xbf16"; 8 for an element that is an address."""
    *lengths, kind = shape.split("x")
    return math.prod(map(int, lengths)) * BYTES.get(kind, 8)
