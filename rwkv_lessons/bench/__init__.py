"""Times an operation, checks it first, and keeps the result.

python -m rwkv_lessons.bench wkv5         every method of the library, one row each
python -m rwkv_lessons.bench ladder wkv5  every rung of the lessons' ladder
python -m rwkv_lessons.bench profile wkv5 what torch launches without a kernel of ours
python -m rwkv_lessons.bench race         what a call is beside its kernel, and CUDA graphs
python -m rwkv_lessons.bench wkv6-decode  one token, with the state in and out
python -m rwkv_lessons.bench first        the first call of a fresh process, which compiles
python -m rwkv_lessons.bench mla-decode   a query token against a latent cache
python -m rwkv_lessons.bench mla-prefill  latent attention of a whole prompt
python -m rwkv_lessons.bench mla-generate a whole MiniCPM3-4B that generates text
python -m rwkv_lessons.bench mla-ladder   a step of it, rung by rung of the lessons
python -m rwkv_lessons.bench ceilings     what this GPU can do at most, and how long it waits
python -m rwkv_lessons.bench record-all   all of these, and keeps them; --list, --needed
python -m rwkv_lessons.report             the README's tables and figures, from the records
python -m rwkv_lessons.bench matrix       what every kernel becomes on every architecture

    methods.py    a library function, a rung or a peer as something that can be checked and timed
    peers.py      other people's packages, if they are installed
    measure.py    one method: check against float64, then time
    timing.py     device time, wall-clock time, memory
    refuse.py     no time of a method that verify finds wrong with some of its options
    show.py       progress, and the rows on a terminal
    launches.py   which kernels the library launches on each architecture, for `matrix`
    gpu_tests.py  how the tests went on a GPU
    commands/     one file per command

What there is to measure stands in operations/; records are JSON, records/data/<gpu>/<name>.json:
where and when once, then one row per measurement. report/ makes the README's tables of them.
"""
