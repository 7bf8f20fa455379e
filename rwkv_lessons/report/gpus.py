"""What other GPUs could reach: least times, and how many warps of each kernel fit on an SM."""

from rwkv_lessons.bench.commands.matrix import load
from rwkv_lessons.operations import work
from rwkv_lessons.records import schema
from warplens import occupancy
from warplens.least_time import data_sheet

ONE_COPY = 0.9  # of the data sheet's bytes a second: about what a copy reaches, on an H200 too
GPUS = {  # of data sheets, and what is compiled for them
    "H200": "sm_90",
    "A100": "sm_80",
    "RTX 3090": "sm_86",
    "RTX 4090": "sm_89",
    "RTX 5090": "sm_120",
}
SHAPE = 8, 4096, 64, 64
OPERATIONS = (
    ("RWKV-6, forward", "wkv6", SHAPE),
    ("RWKV-6, both passes", "wkv6-backward", SHAPE),
    ("RWKV-7, forward", "wkv7", SHAPE),
    ("RWKV-7, both passes", "wkv7-backward", SHAPE),
    ("RWKV-7, one token of 256 sequences", "wkv7-decode", (256, 1, 64, 64)),
)
KERNELS = (  # (label, kernel, call); the launch of it that fits least often
    (
        "RWKV-6, forward",
        "wkv6_chunked_fwd_kernel",
        "wkv6 chunked 64 bfloat16 raw segments training",
    ),
    (
        "RWKV-6, gradients of keys",
        "keys_gradients",
        "wkv6 chunked 64 bfloat16 raw segments training",
    ),
    ("RWKV-7, chunks' maps", "wkv7_maps_kernel", "wkv7 chunked 64 bfloat16 raw training"),
    ("RWKV-7, sweep", "wkv7_sweep_kernel", "wkv7 chunked 64 bfloat16 raw training"),
    ("RWKV-7, gradients", "wkv7_chunk_gradients_kernel", "wkv7 chunked 64 bfloat16 raw training"),
    ("MLA, a step of 16 heads", "decode_kernel", "mla decode R=512 bfloat16, 16 heads"),
)


def least_times():
    """A table in markdown: milliseconds of the bytes that each operation must move."""
    lines = [f"| at least, ms | {' | '.join(GPUS)} |", "|---" * (len(GPUS) + 1) + "|"]
    for label, operation, shape in OPERATIONS:
        least = work(operation, shape, "bfloat16")
        cells = []
        for gpu in GPUS:
            ceiling = data_sheet(gpu, "bfloat16")
            moving = 1e3 * least.bytes / (ONE_COPY * ceiling.bytes_per_s)
            computing = 1e3 * least.flops / ceiling.flops_per_s
            cells.append(f"{max(moving, computing):.2f}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def warps():
    """A table in markdown: warps of each kernel that fit on an SM, and the bytes it spills."""
    head = " | ".join(("warps on an SM / spilled bytes a thread", *GPUS))
    lines = [f"| {head} |", "|---" * (len(GPUS) + 1) + "|"]
    _, rows = load()
    for label, kernel, call in KERNELS:
        cells = []
        for architecture in GPUS.values():
            fits = [
                (occupancy(registers, 32 * row.warps, shared, architecture).warps_per_sm, spills)
                for row in rows
                if (row.kernel.split(".")[-1], row.call) == (kernel, call)
                for registers, spills, shared in [row.found.get(architecture, (0, 0, 0))]
                if registers
            ]
            cells.append("{} / {}".format(*min(fits)) if fits else "—")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sent_in(folder=schema.RECORDS):
    """A table in markdown: what `bench quick` measured on each GPU; "" if nobody sent a file."""
    records = [schema.load(file) for file in sorted(folder.glob("*/quick.json"))]
    if not records:
        return ""
    names = dict.fromkeys(row.method for record in records for row in record.rows)
    heads = [f"{x.provenance.gpu}, {x.provenance.date}, {x.provenance.commit}" for x in records]
    lines = [f"| ms | {' | '.join(heads)} |", "|---" * (len(records) + 1) + "|"]
    for name in names:
        cells = [
            next((row.outcome for row in record.rows if row.method == name), "—")
            for record in records
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
