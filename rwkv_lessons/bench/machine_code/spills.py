"""The kernels that may spill: on how many of their launches, and how much. No other may.

An assembler can lose what it spilled (faults.py), so every launch that spills is one to distrust.
Those below were tuned by time on an H200, or have tiles that were chosen by what fits elsewhere;
other tiles would be kernels that no GPU has run. Those of serving have the tiles of wkv7.chunked's
maps and sweep, and were checked on an H100; those of hopper.wide share an SM's registers between
roles, and were checked on an H200. What wkv6.cuda's reverse sweep spills of heads of 64, on sm_100
and sm_120, is read outside its loop over tokens. The table may become shorter, not longer: where a
new launch would spill, take a smaller tile or another method.
"""

from collections import defaultdict

NONE = 0, 0
# Launches of launches.py that spill, and the most bytes a thread.
MOST = """
                                                     sm_80   sm_86   sm_89    sm_90  sm_100  sm_120
mla.decode.compact.decode_listed_kernel               1:12    2:20    2:20       -    1:16       -
mla.decode.forward.combine_kernel                        -       -       -       -     1:4       -
mla.decode.forward.decode_kernel                     4:692   2:680   2:680    2:684   2:684   2:436
mla.decode.fp8.decode_fp8_kernel                         -       -       -    4:28       -       -
mla.decode.hopper.decode_hopper_kernel                   -       -       -     4:52       -       -
mla.prefill.backward.keys_kernel                    6:1164  4:1016  4:1016   2:3692  2:2788  2:2784
mla.prefill.backward.queries_kernel                  3:208    1:40    1:40   2:2704  4:2084  4:2112
mla.prefill.forward.attend_kernel                    4:828   4:500   4:500  11:4676 14:1552 16:1536
timex.toeplitz.forward.timex_toeplitz_kernel           2:4     2:4     2:4        -       -    2:12
wkv6.chunked.forward.wkv6_chunked_fwd_kernel        19:584  16:560  16:560  22:1824       -  21:532
wkv6.chunked.hopper.forward.wkv6_hopper_kernel           -       -       -   12:344       -       -
wkv6.chunked.hopper.sweep.sweep_hopper_kernel            -       -       -    5:216       -       -
wkv6.chunked.hopper.wide.wkv6_wide_kernel                -       -       -    4:204       -       -
wkv6.chunked.hopper.wide_sweep.wkv6_wide_sweep_kernel    -       -       -    1:312       -       -
wkv6.chunked.pairs.keys_gradients                  23:2956 23:2956 23:2956 31:14732 23:3316 23:3612
wkv6.chunked.pairs.values_gradients                16:4236 14:4192 14:4192 24:10196 16:4964 16:4576
wkv6.chunked.states.state_gradients                 17:632  17:592  17:592   14:340   7:216  18:500
wkv6.chunked.strong.wkv6_strong_kernel             23:3504 23:3500 23:3500  25:6996 21:1456 23:3496
wkv6.cuda.reverse_sweep                                  -       -       -        -     2:8    4:84
wkv6.serving.kernels.wkv6_prompts_kernel            2:1176  2:1072  2:1072    2:744   1:816  2:1108
wkv7.chunked.gradients.wkv7_chunk_gradients_kernel  6:3636  6:3564  6:3564   9:2164   5:904  6:3264
wkv7.chunked.hopper.gradients.wkv7_tile_gradients_kernel - - - 3:136 - -
wkv7.chunked.hopper.wide.gradients.wkv7_wide_gradients_kernel - - - 3:76 - -
wkv7.chunked.hopper.wide.sweep.wkv7_wide_kernel          -       -       -    9:432       -       -
wkv7.chunked.maps.wkv7_maps_kernel                   4:536   4:352   4:352   8:1904   3:524   3:496
wkv7.chunked.segments.wkv7_segments_kernel            1:20    4:44    4:44   4:3080       -    1:28
wkv7.chunked.sweep.wkv7_sweep_kernel                12:148   12:72   12:72  13:2268    3:24    8:76
wkv7.serving.prompts.wkv7_serving_maps_kernel        2:812   2:772   2:772    3:788   2:816   2:776
wkv7.serving.prompts.wkv7_serving_sweep_kernel           -    2:60    2:60    2:412       -    1:32
"""


def allowed():
    """{(kernel, architecture): (launches, bytes)} of `MOST`."""
    head, *lines = MOST.strip("\n").splitlines()
    return {
        (kernel, architecture): tuple(map(int, cell.split(":")))
        for kernel, *cells in map(str.split, lines)
        for architecture, cell in zip(head.split(), cells, strict=True)
        if cell != "-"
    }


def too_many(rows):
    """Each kernel that spills more than it may, in a sentence; `rows` are `Compiled`."""
    spilling, most = defaultdict(list), allowed()
    for row in rows:
        for architecture, (_, spills, _) in row.found.items():
            if spills:
                spilling[row.kernel, architecture].append(spills)
    for (kernel, architecture), each in spilling.items():
        launches, largest = most.get((kernel, architecture), NONE)
        if len(each) > launches or max(each) > largest:
            yield (
                f"{kernel}, {architecture}: {len(each)} launches spill, up to {max(each)} bytes a "
                f"thread; bench/machine_code/spills.py allows {launches}, and {largest} bytes"
            )
