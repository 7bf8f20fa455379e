"""Measured numbers that lessons and designs say in words are those of the records.

What a cell prints or draws comes from a record by itself. A sentence does not: it stands here, with
the rows that it speaks of, so that a new recording fails this test where it makes a sentence false.
"""

import dataclasses
import json
import re
from collections.abc import Callable

import pytest
import torch

from rwkv_lessons.distributed.cost import forward
from rwkv_lessons.lab.course.exercises import NOTEBOOKS, ROOT
from rwkv_lessons.lab.lessons.lesson_18.pictures import A800, find
from rwkv_lessons.lab.lessons.lesson_30.pictures import assumed_rates
from rwkv_lessons.lab.lessons.lessons_10_11.pictures import arithmetic_ms
from rwkv_lessons.lab.pictures.ladder import floor
from rwkv_lessons.lab.pictures.roofline import ceiling
from rwkv_lessons.operations import work
from rwkv_lessons.records.lookup import GPU, record
from rwkv_lessons.records.traces import load_traces
from rwkv_lessons.runtime.devices import H200
from rwkv_lessons.wkv6 import method_for
from warplens.least_time import roof_over

# Two recordings of one kernel on one GPU differ by this much, and no sentence should hang on it.
JITTER = 0.02
NUMBER = r"(\d[\d.]*\d|\d)"  # stands for # in what follows


@dataclasses.dataclass(frozen=True)
class Said:
    """A sentence with numbers that were measured, or counted by a cell.

    Args:
        lesson: two digits, or the name of a page of docs/.
        text: a regular expression that finds it once, with # for each number.
        measured: () → what the records have for them.
        words: the numbers, where the sentence has words for them.
        within: how far off words may be, as a share; digits are off by half of the last at most.
    """

    lesson: str
    text: str
    measured: Callable
    words: tuple = ()
    within: float = JITTER


def row(name, method, shape=None, dtype=None):
    """That row; where there is none yet, or one of older code, the test waits for a recording."""
    try:
        found = record(name).row(method, shape, dtype)
    except LookupError as missing:
        if not str(missing).startswith(("0 rows", "no record")):
            raise
        pytest.skip(str(missing).partition(";")[0])
    if found.stale:
        pytest.skip(f"{name}: {method} was measured with older code")
    return found


def ms(name, method, shape=None, dtype=None):
    return row(name, method, shape, dtype).median_ms


LADDER, BOTH = "wkv6-triton-ladder", "wkv6-triton-backward-ladder"
WALK, CHUNKS = "13_fused_recurrent", "16_the_chunked_kernel"
MAIN = (8, 4096, 64, 64)
MANY, ONE = (64, 4096, 40, 64, 256, 32, 64), (1, 16384, 40, 64, 256, 32, 64)
SHORT, LONG = (64, 4096, 40, 256, 32, 64), (64, 16384, 40, 256, 32, 64)


def shown(lesson, cell, pattern):
    """The numbers that a cell prints, as it is stored: the groups of a pattern."""
    (file,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    (outputs,) = (c["outputs"] for c in json.loads(file.read_text())["cells"] if c["id"] == cell)
    text = "\n".join("".join(o.get("text", o.get("data", {}).get("text/plain", "")))
                     for o in outputs)  # fmt: skip
    return tuple(float(x.replace(",", "")) for x in re.search(pattern, text, re.S).groups())


def ratio(numbers):
    """What a second number is in units of the first."""
    first, second = numbers
    return second / first


def f32(method, name=LADDER):
    return ms(name, method, dtype="float32")


def per_token(name, method):
    """Microseconds."""
    found = row(name, method, dtype="float32")
    return 1e3 * found.median_ms / found.shape[1]


def torch_part():
    """The least milliseconds of lesson 14's operations in torch: 44 tensors."""
    return 44 * 4 * 8 * 4096 * 64 * 64 / ceiling().bytes_per_s * 1e3


def timex(*rungs, name="timex-ladder", lesson="10_time_x"):
    return lambda: tuple(ms(name, f"{lesson}.{rung}") for rung in rungs)


def race(method, T=54, replayed=False):
    """A `Trace` of lesson 18: a call, or a replay of its graph."""
    return find(load_traces("wkv6-race", GPU)[1], method, (1, T, 32, 64), replayed)


def idle(call):
    """The share of a call in which none of its kernels runs."""
    return 1 - call.device_us / call.wall_us


def per_token_us(method, replayed=False):
    """What a token adds to a call, and the call without any: a line through two lengths."""
    short, long = (race(method, T, replayed).wall_us for T in (54, 4096))
    each = (long - short) / (4096 - 54)
    return each, short - 54 * each


def crossing(one, other):
    """The tokens from which on replays of `other` take no longer than those of `one`."""
    (each, fixed), (other_each, other_fixed) = (per_token_us(x, True) for x in (one, other))
    return (other_fixed - fixed) / (each - other_each)


def first_in(table):
    """The kernels and the call that are the fastest, of {method: (call, kernels)}."""
    return tuple(min(table, key=lambda x: table[x][part]) for part in (1, 0))


WAYS = "cuda", "recurrent", "chunked"


def short_calls():
    """The two tables of lesson 18 for 54 tokens on one GPU, as `first_in` takes them."""
    times = [row("wkv6-short", x, (1, 54, 32, 64)) for x in WAYS]
    here = {x.method: (x.host_ms, x.median_ms) for x in times}
    return here, {x: (race(x).wall_us, race(x).device_us) for x in WAYS}


def roof(operation, shape):
    return roof_over(work(operation, shape, "float32"), ceiling()).floor_ms


def per_byte():
    """Bytes a second between sequences of 4,096 and of 16,384 tokens, and ms that are left over."""
    short, long = (ms("mla-decode", "decode", shape) for shape in (SHORT, LONG))
    return 453e6 / (long - short) / 1e9, 1e3 * (short - 151e6 / (453e6 / (long - short)))


def hopper(rung):
    return ms("wkv6-hopper-ladder", rung)


def generated(kind, B=1, T=512, out=20):
    """Milliseconds a token of so many sequences written after prompts of T tokens."""
    return row("mla-generate", kind, (B, T, out)).host_ms / out


def share_of_products(shape=(64, 4096, 128, 512, 64, 128)):
    """What MLA's decode reaches of the rate of bfloat16 products, for scores and sums."""
    B, N, H, R, P, _ = shape
    flops = 2 * B * N * H * (2 * R + P)
    return flops / ms("mla-decode", "decode", shape) * 1e3 / ceiling("bfloat16").flops_per_s


def slower_replays():
    """How much longer a replay of MLA's decode takes than a call, in percent, at most."""
    rows = [x for x in record("mla-decode").rows if x.method == "decode"]
    return max(
        100 * ms("mla-decode", "decode, graph replay", x.shape, x.dtype) / x.median_ms - 100
        for x in rows
    )


def printed(lesson, text):
    """The numbers in what a lesson's cells print, or draw and say; # for each number."""
    (file,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    outputs = [x for cell in cells for x in cell.get("outputs", ())]
    texts = ["".join(x.get("text") or x["data"].get("text/plain", ())) for x in outputs]
    (found,) = re.finditer(text.replace("#", NUMBER), "\n".join(texts))
    return tuple(map(float, found.groups()))


SENTENCES = (
    Said("00", r"# threads start for 70 elements",
         lambda: shown("00", "c17", r"counted: (\d+) threads"), within=0),
    Said("02", r"all 54 tokens repeat the same seven kernels",
         lambda: shown("02", "c14", r"counted: (\d+) kernels"), (7,), 0),
    Said("03", r"issues `1 \+ 4N = #` load requests and `N = #` atomics, for only # "
         r"multiplications and multiply-adds",
         lambda: (*(n / 16 for n in shown("03", "c18",
                                          r"all    load +([\d,]+).*?atomic +([\d,]+)")),
                  sum(shown("03", "c20", r"FFMA ×(\d+)  FMUL ×(\d+)"))), within=0),
    Said("03", r"takes # % less time",
         lambda: (100 - 100 * ratio(shown("03", "ladder_measured",
                                          r"03 atomic baseline +(\S+) +\S+ +(\S+)")),)),
    Said("03", r"about # times as many bytes as the minimum",
         lambda: (1 / ratio(shown("03", "c18", r"all    load +\S+ +\S+ +\S+ +(\S+) +(\S+)")),),
         within=0.06),
    Said("04", r"Time fell by more than the number of requests",
         lambda: (ratio(shown("04", "factors", r"requests (\S+)× fewer, (\S+)× faster")) > 1.05,),
         (True,)),
    Said("05", r"Requests and sectors fell to about a quarter",
         lambda: tuple(map(ratio, (shown("05", "traffic", rf"04 +{skip}(\S+) .*05 +{skip}(\S+) ")
                                   for skip in ("", r"\S+ +")))), (1 / 4, 1 / 4), 0.08),
    Said("05", r"but the time fell by only # %",
         lambda: (100 - 100 * ms("wkv5-ladder", "05_float4")
                  / ms("wkv5-ladder", "04_drop_the_atomics"),)),
    Said("06", r"the busiest SM never gets more than # warps",
         lambda: shown("06", "dealt", r"counted: (\d+) warps"), within=0),
    Said("06", r"With 256 threads there are # blocks for # SMs: four SMs sit idle,",
         lambda: (*shown("06", "dealt", r"blocks of 256: +(\d+)"), 132), within=0),
    Said("06", r"start more than four times as many loads before it needs",
         lambda: (ratio(shown("06", "generous", r"(\d+) loads.* (\d+) loads")),), (4.4,), 0.05),
    Said("07", r"all registers\*, # ms, gained only # %",
         lambda: (ms("wkv5-ladder", "06_block_size.generous"),
                  100 - 100 * ms("wkv5-ladder", "07_shared_memory.shared")
                  / ms("wkv5-ladder", "06_block_size.generous")), within=0.005),
    Said("07", r"Its wavefronts explain less than half of its time",
         lambda: (ratio(shown("07", "model", r"shared +(\S+) ms of \S+ recorded (\S+) ms")) > 2,),
         (True,)),
    Said("07", r"Wavefronts take # ms, and the arithmetic at most the # ms that `shared` needs",
         lambda: (*shown("07", "finished_trace", r"wavefronts: (\S+) ms"),
                  *shown("07", "rest", r"arithmetic: (\S+) ms")), within=0),
    Said("08", r"the recorded time rose by only # %: # ms for lesson 07, # ms here",
         lambda: (100 * ms("wkv6-ladder", "08_decay_from_data")
                  / ms("wkv5-ladder", "07_shared_memory.shared") - 100,
                  ms("wkv5-ladder", "07_shared_memory.shared"),
                  ms("wkv6-ladder", "08_decay_from_data")), within=0.005),
    Said("09", r"a text four times as long has about twice the error",
         lambda: (ratio(shown("09", "lengths", r"64: one sum (\S+),.*4,096: one sum (\S+),"))
                  ** (1 / 3),), (2,), 0.15),
    Said("06", r"L2 answers in # ns", lambda: (record("ceilings").ceilings["l2_latency_ns"],)),
    Said("10", r"its first kernel, with one thread per output, takes # ms",
         lambda: (ms("rwkv-cuda-timex", "v0"),)),
    Said("10", r"about # trillion operations a second",
         lambda: (ceiling().flops_per_s / 1e12,)),
    Said("10", r"It saves an eighth, from # to # ms", timex("grouped", "balanced")),
    Said("10", r"C takes more than twice as long as either",
         lambda: (ms("rwkv-cuda-timex", "v3") / 2 > arithmetic_ms(),), (True,)),
    Said("10", r"For `four`, wavefronts explain only about half of the time that C takes",
         lambda: (ratio(printed("10", r"four +\S+ +# +# ms")[::-1]),), (0.5,), 0.15),
    Said("10", r"The float32 units need at least # ms", lambda: (arithmetic_ms(),)),
    Said("10", r"dotted line of the ladder is at # ms", lambda: floor("timex")[:1]),
    Said("10", r"as fast as in C, to within # %",
         lambda: (100 * max(ms("timex-ladder", f"10_time_x.{rung}") / ms("rwkv-cuda-timex", C) - 1
                            for rung, C in (("naive", "v0"), ("shared", "v1"))),), within=0.5),
    Said("10", r"the last rung below the finished kernel: # ms in float32, hardly less than",
         lambda: (ms("timex-ladder", "10_time_x.toeplitz"),)),
    Said("10", r"`rwkv_lessons/timex/toeplitz/forward.py`, takes # ms, and # in bfloat16",
         lambda: (ms("timex-ladder", "toeplitz"),
                  ms("timex-peers", "toeplitz", (32, 768, 768), "bfloat16"))),
    Said("11", r"from # ms to #, while forward went from # to #",
         lambda: (*(ms("rwkv-cuda-timex-backward", x) - ms("rwkv-cuda-timex", x)
                    for x in ("v0", "v3")),
                  *(ms("rwkv-cuda-timex", x) for x in ("v0", "v3")))),
    Said("11", r"your last float32 kernel takes about twice as long as its multiply-adds",
         lambda: (ms("timex-ladder", "10_time_x.balanced") / arithmetic_ms(),), (2,), 0.1),
    Said("11", r"The float32 units of your kernels need at least # ms for the three sums",
         lambda: (arithmetic_ms(operation="timex-backward"),)),
    Said("11", r"the finished kernel of the ladder above: # ms for both passes, compared with # "
         r"for the last rung",
         lambda: (ms("timex-backward-ladder", "toeplitz", dtype="float32"),
                  ms("timex-backward-ladder", "11_time_x_gradients.balanced"))),
    Said("12", r"16 elements, or # loads of four",
         lambda: printed("12", r"n = 65,536: # loads, # of them 16 bytes wide")[:1]),
    Said("12", r"In both layouts a load of a warp touches # sectors",
         lambda: printed("12", r"as compiled: .* sectors that warp 0 reads: # in its first load")),
    Said("12", r"In both layouts a load of a warp touches # sectors",
         lambda: printed("12", r"down the columns: .* that warp 0 reads: # in its first load")),
    Said("13", r"computes it for all of its keys: # times instead of once",
         lambda: printed("13", r"torch\.bfloat16 +MUFU\.EX2 +#")),
    Said("13", r"times instead of once",
         lambda: printed("13", r"torch\.float32 +MUFU\.EX2 +#"), (1,)),
    Said("14", r"For heads of 100 there are twelve tensors to be added to three",
         lambda: (sum(printed("14", r"dr_s_parts #  dk_s_parts #  dv_s_parts #")),), (12,)),
    Said("14", r"for every 64 tokens, it takes one and a half",
         lambda: printed("14", r"counted: (1\.\d+) tensors"), (1.5,), 0.05),
    Said("17", r"With # registers for each of 256 threads, one program fills an SM",
         lambda: printed("17", r"BT = 16, tf32x3: .* # registers, \d+ B spilled, fit on an SM: 1")),
    Said("17", r"at one of the # barriers in the code",
         lambda: printed("17", r"BT = 16, tf32x3: .*BAR #")),
    Said("13", r"a token takes about # % longer",
         lambda: (100 * per_token(LADDER, "08_decay_from_data")
                  / per_token("wkv6-triton-few", "08_decay_from_data") - 100,), within=0.15),
    Said("13", r"whose tensor cores are so fast that memory is the limit",
         lambda: (floor("wkv6-triton", dtype="float32")[1] == "memory",), (True,)),
    Said("13", r"Half the bytes take twice the time",
         lambda: (ms(LADDER, WALK, dtype="bfloat16") / f32(WALK),), (2,), 0.1),
    Said("13", r"worth #× with 16 heads, and still #× with 512",
         lambda: tuple(ms(x, "08_decay_from_data", dtype="float32") / ms(x, WALK, dtype="float32")
                       for x in ("wkv6-triton-few", LADDER))),
    Said("14", r"Torch's part takes at least a third of the time",
         lambda: (torch_part() / (f32("14_recurrent_gradients.gradients", BOTH) - f32(WALK)),),
         (1 / 3,), 0.15),
    Said("14", r"The rest, our three kernels, takes less than lesson 09's three",
         lambda: (f32("14_recurrent_gradients.gradients", BOTH) - f32(WALK) - torch_part()
                  < f32("09_the_backward_pass.gradients", BOTH) - f32("08_decay_from_data"),),
         (True,)),
    Said("16", r"and with 64 heads an eleventh",
         lambda: (ms("wkv6-small", "chunked", (1, 4096, 64, 64), "bfloat16")
                  / ms("wkv6-small", "cuda", (1, 4096, 64, 64), "bfloat16"),), (1 / 11,), 0.1),
    Said("16", r"Together that makes the kernel #× as fast", lambda: (f32(WALK) / f32(CHUNKS),)),
    Said("16", r"In lesson 13 the float32 units set the roof, # ms", lambda: floor("wkv6")[:1]),
    Said("16", r"so memory sets the roof, # ms",
         lambda: floor("wkv6-triton", dtype="float32")[:1]),
    Said("16", r"so memory sets the roof",
         lambda: (floor("wkv6-triton", dtype="float32")[1] == "memory",), (True,)),
    Said("16", r"A step of sixteen tokens takes as long as six single-token steps",
         lambda: (f32(CHUNKS) / 2 / 256 / (f32(WALK) / 4096),), (6,), 0.08),
    Said("16", r"the chunked kernel takes a bit more than a quarter of the recurrent one's time",
         lambda: (ms("wkv6", "chunked", dtype="bfloat16") / ms("wkv6", "cuda", dtype="bfloat16"),),
         (1 / 4,), 0.12),
    Said("17", r"In bfloat16 the chunked kernels take three tenths of the recurrent ones' time",
         lambda: (ms("wkv6-backward", "chunked", dtype="bfloat16")
                  / ms("wkv6-backward", "cuda", dtype="bfloat16"),), (3 / 10,), 0.1),
    Said("17", r"and less than a tenth with 64 heads",
         lambda: (ms("wkv6-backward-small", "chunked", (1, 4096, 64, 64), "bfloat16") < 0.1
                  * ms("wkv6-backward-small", "cuda", (1, 4096, 64, 64), "bfloat16"),), (True,)),
    Said("18", r"no kernel runs for at least three quarters of each call on the GPU",
         lambda: (min(idle(race(x)) for x in (*WAYS, "recurrent, heads first")) >= 0.75,),
         (True,)),
    Said("18", r"`chunked` has the fastest kernels in both H200 tables\. Its call is the "
         r"fastest in one and not in the other",
         lambda: ({first_in(x)[0] for x in short_calls()} == {"chunked"},
                  len({first_in(x)[1] for x in short_calls()})), (True, 2)),
    Said("18", r"On the A800, `chunked` has the fastest kernels and the slowest call of the three",
         lambda: (min(WAYS, key=lambda x: A800[x][1]) == max(WAYS, key=lambda x: A800[x][0])
                  == "chunked",), (True,)),
    Said("18", r"five copies make its call about # µs longer",
         lambda: (race("recurrent, heads first").wall_us - race("recurrent").wall_us,),
         within=0.2),
    *(Said("18", r"`recurrent` and `cuda` spend # % of a call in kernels",
           lambda x=x: (100 * (1 - idle(race(x, 4096))),)) for x in ("recurrent", "cuda")),
    Said("18", r"about half of its call is still fixed cost",
         lambda: (idle(race("chunked", 4096)),), (0.5,), 0.15),
    Said("18", r"`chunked` has both the lower fixed cost and the lower cost for each token",
         lambda: tuple(x < y for x, y in zip(per_token_us("chunked"), per_token_us("recurrent"),
                                             strict=True)), (True, True)),
    Said("18", r"each further µs shifts the break-even by # tokens",
         lambda: (1 / (per_token_us("recurrent", True)[0] - per_token_us("chunked", True)[0]),)),
    Said("18", r"`recurrent` up to # tokens, `chunked` from # on, in 16 bits",
         lambda: tuple(n for n, method in ((16, "recurrent"), (17, "chunked"))
                       if method_for("cuda", torch.bfloat16, n, 32, 64, False, gpu=H200)
                       == method)),
    Said("18", r"close to the break-even of graphs",
         lambda: (crossing("recurrent", "chunked"),), (17,), 0.5),
    Said("18", r"whose calls take # to # times their longest kernel",
         lambda: tuple(f(call / kernel for call, kernel in A800.values()) for f in (min, max))),
    Said("19", r"library's kernel takes a quarter of its time",
         lambda: (ms("wkv6-hopper-ladder", "chunked") / ms("wkv6-hopper-ladder", CHUNKS),),
         (1 / 4,), 0.1),
    Said("20", r"a large product, # TFLOP/s for 132 SMs",
         lambda: (ceiling("bfloat16").flops_per_s / 1e12,)),
    Said("20", r"Copies that run ahead save a fifth of the time",
         lambda: (1 - hopper("19_copies_in_flight.two_stages")
                  / hopper("19_copies_in_flight.one_stage"),), (1 / 5,), 0.15),
    Said("20", r"Starting the products together saves almost nothing",
         lambda: (hopper("20_products_in_flight.together")
                  / hopper("19_copies_in_flight.two_stages"),), (1,)),
    Said("20", r"The record says otherwise: from # to # ms, a quarter of that",
         lambda: tuple(ms("wkv6-hopper-alone", x) for x in
                       ("19_copies_in_flight.two_stages", "20_products_in_flight.together"))),
    Said("20", r"Your kernel is faster than the library's",
         lambda: (hopper("20_products_in_flight.together") < hopper("chunked"),), (True,)),
    Said("21", r"A warp that only copies gains another # %",
         lambda: (100 * hopper("21_the_finished_kernel.masks")
                  / hopper("21_the_finished_kernel.producer") - 100,), within=0.3),
    Said("21", r"a call takes about # times as long",
         lambda: (ms("wkv6-decays", "wkv6, w = -5") / ms("wkv6-decays", "wkv6, tame"),)),
    Said("21", r"costs more time than all the later steps save",
         lambda: (hopper("21_the_finished_kernel.producer")
                  > hopper("20_products_in_flight.together"),), (True,)),
    Said("21", r"one channel in 64 at -5, in each head, a call takes as long as with -5 everywhere",
         lambda: tuple(ms("wkv6-decays", f"wkv6, one channel in 64 at -5{x}")
                       / ms("wkv6-decays", f"wkv6, w = -5{x}") for x in ("", ", both passes")),
         (1, 1)),
    Said("21", r"beyond -5 a stronger decay costs no more",
         lambda: tuple(ms("wkv6-decays", f"wkv6, w = -20{x}")
                       / ms("wkv6-decays", f"wkv6, w = -5{x}") for x in ("", ", both passes")),
         (1, 1)),
    Said("22", r"Lesson 13's kernel takes # ms on an H200, recorded", lambda: (f32(WALK),)),
    Said("22", r"the time of a token grew only #×",
         lambda: (ms("wkv7-ladder", "22_delta_rule") / f32(WALK),)),
    Said("22", r"about as much as the operations",
         lambda: (ms("wkv7-ladder", "22_delta_rule") / f32(WALK),), (9 / 7,), 0.05),
    Said("23", r"If no cache helped, the bytes would take about # ms",
         lambda: ((27 + 48) * 4e3 * 8 * 4096 * 64 * 64 / ceiling().bytes_per_s,), within=0.1),
    Said("23", r"The recorded time is # ms, so bytes alone",
         lambda: (ms("wkv7-backward-ladder", "23_stepping_back.gradients", dtype="float32"),)),
    Said("24", r"In float32, the recorded # ms are twice the line for 8 warps. They are also "
         r"more than the # ms of lesson 22's scan",
         lambda: tuple(ms("wkv7-ladder", x, dtype="float32")
                       for x in ("24_chunked_rwkv7", "22_delta_rule"))),
    Said("24", r"moves half the bytes: # ms, which is still #× of that scan",
         lambda: (ms("wkv7-ladder", "24_chunked_rwkv7", dtype="bfloat16"),
                  ms("wkv7-ladder", "22_delta_rule")
                  / ms("wkv7-ladder", "24_chunked_rwkv7", dtype="bfloat16"))),
    Said("24", r"while four others update the state. It takes # ms",
         lambda: (ms("wkv7", "wkv7", MAIN),)),
    Said("24", r"this rung ends at #× of lesson 22, in float32",
         lambda: (ms("wkv7-ladder", "22_delta_rule")
                  / ms("wkv7-ladder", "24_chunked_rwkv7", dtype="float32"),)),
    Said("24", r"lesson 22's roof of # ms, which was for multiply-adds",
         lambda: (roof("wkv7", (8, 4096, 64, 64)),)),
    Said("24", r"In bfloat16 the bytes are the limit, # ms",
         lambda: (roof_over(work("wkv7", (8, 4096, 64, 64), "bfloat16"),
                            ceiling("bfloat16")).floor_ms,)),
    Said("24", r"are twice the line for 8 warps",
         lambda: (ms("wkv7-ladder", "24_chunked_rwkv7", dtype="float32") / 2 / f32(CHUNKS),),
         (2,), 0.15),
    Said("26", r"`prefill absorbed` takes about two to four times as long as `prefill`",
         lambda: tuple(f(ms("mla-prefill", "prefill absorbed", x.shape) / x.median_ms
                         for x in record("mla-prefill").rows if x.method == "prefill")
                       for f in (min, max)), (2, 4), 0.15),
    Said("27", r"falls by a factor of about twenty",
         lambda: (ms("mla-ladder", "26_fused_prefill", MANY)
                  / ms("mla-ladder", "27_split_decode", MANY),), (20,), 0.15),
    Said("27", r"it takes longer alone than both kernels together",
         lambda: (ms("mla-ladder", "27_split_decode.combine", ONE)
                  / ms("mla-ladder", "27_split_decode", ONE) > 1,), (True,)),
    Said("27", r"the difference of the two times, that is about # TB/s",
         lambda: per_byte()[:1], within=0.1),
    Said("27", r"over # µs for everything that happens once", lambda: per_byte()[1:], within=0.4),
    Said("27", r"is up to # % \*slower\* at the largest sizes", lambda: (slower_replays(),),
         within=0.1),
    Said("27", r"nearly three quarters of what the GPU could",
         lambda: (share_of_products(),), (3 / 4,), 0.05),
    Said("28", r"one short sequence takes # ms a token, prompt included",
         lambda: (generated("latent graph"),), within=0.05),
    Said("28", r"for one short sequence it is slower than `eager`",
         lambda: (generated("latent") > generated("eager"),), (True,)),
    Said("28", r"nearly the same time for 1 short sequence as for 16",
         lambda: (generated("latent", 16) / generated("latent"),), (1,), 0.1),
    Said("29", r"memories with half-lives from # to # tokens",
         lambda: printed("29", r"depth 0: from # tokens to #;")[::-1]),
    Said("30", r"By their bytes that still leaves #× for two GPUs",
         lambda: (forward(2**17, 2, assumed_rates(latency=5e-5, link=2e11)).speedup,)),
    Said("30", r"The record has #× for 131,072 tokens and #× for a million",
         lambda: tuple(ms("sequence-parallel", "wkv6, one GPU", (2, 1, T, 64, 64))
                       / ms("sequence-parallel", "wkv6, two GPUs", (2, 1, T, 64, 64))
                       for T in (2**17, 2**20))),
    Said("designs_wkv6", r"\| the main shape \| 0.42; 2.0 \| #; # \|",
         lambda: tuple(ms(x, "wkv6", MAIN, "bfloat16") for x in ("wkv6", "wkv6-backward"))),
    Said("designs_wkv6", r"\| mild decays \| 0.38; 1.5 \| #; # \|",
         lambda: tuple(ms("wkv6-decays", f"wkv6, tame{x}") for x in ("", ", both passes"))),
    Said("designs_wkv6", r"\| any decay \| 0.80; 3.6 \| #; # \|",
         lambda: tuple(ms("wkv6-decays", f"wkv6, one channel in 64 at -5{x}")
                       for x in ("", ", both passes"))),
    Said("designs_wkv6", r"\| float16 \| 0.50; 2.2 \| #; # \|",
         lambda: tuple(ms(x, "wkv6", MAIN, "float16")
                       for x in ("wkv6-sizes", "wkv6-backward-sizes"))),
    Said("designs_wkv6", r"\| B=4 H=32 N=128 \| 0.31; 1.35 \| #; # \|",
         lambda: tuple(ms(x, "wkv6", (4, 4096, 32, 128), "bfloat16")
                       for x in ("wkv6-sizes", "wkv6-backward-sizes"))),
    Said("designs_wkv6", r"\| float32 \| 1.9; 5 \| #; # \|",
         lambda: tuple(ms(x, "wkv6", MAIN, "float32") for x in ("wkv6", "wkv6-backward"))),
    Said("designs_wkv6", r"\| B=1 T=32768 \| 0.55; 2.0 \| #; # \|",
         lambda: tuple(ms(x, "wkv6", (1, 32768, 64, 64), "bfloat16")
                       for x in ("wkv6-small", "wkv6-backward-small"))),
    Said("designs_wkv6", r"\| one token, B=256 \| 0.135 \| # \|",
         lambda: (ms("wkv6-decode", "wkv6_step", (256, 1, 64, 64), "bfloat16"),)),
    Said("designs_wkv6", r"eight times as fast as flash-linear-attention's .* and seven times",
         lambda: tuple(ms(x, "fla chunk") / ms(x, "wkv6")
                       for x in ("wkv6-peers", "wkv6-backward-peers")), (8, 7), 0.06),
    *(Said("designs_wkv7", rf"\| {B}, {N}, {T} \| # \| \S+ \| # \|",
           lambda shape=(B, T, 4096 // N, N), long="-long" * (B == 1): tuple(
               ms(f"{x}{long}", "wkv7", shape, "bfloat16") for x in ("wkv7", "wkv7-backward")))
      for B, N, T in ((8, 64, 4096), (8, 128, 4096), (8, 256, 4096), (1, 64, 32768),
                      (1, 256, 32768))),
    Said("designs_mla", r"\| 64 × 4,096 \| 101.9 \| # \(#\) \|",
         lambda: tuple(1e3 * ms("mla-decode", f"decode{x}", (64, 4096, 128, 512, 64, 128))
                       for x in ("", ", graph replay"))),
)  # fmt: skip


def prose(lesson):
    if not lesson.isdigit():
        return (ROOT / "docs" / f"{lesson}.md").read_text(encoding="utf-8")
    (file,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    cells = json.loads(file.read_text())["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def digits_off(text):
    """Half of the last digit of a number as text."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("said", SENTENCES, ids=lambda said: f"{said.lesson} {said.text[:40]}")
def test_what_a_sentence_says_was_measured(said):
    (found,) = re.finditer(said.text.replace("#", NUMBER), prose(said.lesson))
    told = [(x, digits_off(x)) for x in found.groups()] or [(x, 0) for x in said.words]
    measured = said.measured()
    assert len(told) == len(measured)
    for (number, off), there in zip(told, measured, strict=True):
        limit = max(off, said.within * abs(there))
        assert abs(float(number) - there) <= limit, f"{found[0]!r}: the record has {there:.4g}"
