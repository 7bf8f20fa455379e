"""Times an operation, checks it first, and keeps the result.

python -m rwkv_lessons.bench wkv5         every method of the library, one row each
python -m rwkv_lessons.bench ladder wkv5  every rung of the lessons' ladder
python -m rwkv_lessons.bench profile wkv5 what torch launches without a kernel of ours
python -m rwkv_lessons.bench wkv6-decode  one token, with the state in and out
python -m rwkv_lessons.bench first        the first call of a fresh process, which compiles
python -m rwkv_lessons.bench mla-decode   a query token against a latent cache
python -m rwkv_lessons.bench mla-prefill  latent attention of a whole prompt
python -m rwkv_lessons.bench mla-generate a whole MiniCPM3-4B that generates text
python -m rwkv_lessons.bench mla-ladder   a step of it, rung by rung of the lessons
python -m rwkv_lessons.bench ceilings     the most bytes and operations a second of this GPU
python -m rwkv_lessons.bench record-all   all of these, and keeps them; --list, --needed
python -m rwkv_lessons.bench readme       the README's tables and figures, from the records

    launches.py  what the library launches on a GPU that is not there, for `matrix`
    methods.py   a library function, a rung of a ladder or a peer, to be checked and timed
    peers.py     other people's packages, if they are installed
    measure.py   one method: check against float64, then time
    timing.py    device time, wall-clock time, memory
    refuse.py    no time is recorded of a method that verify finds wrong
    gpu_tests.py how the tests went on a GPU
    show.py      progress and tables on a terminal
    commands/    one file per command; run.py has those of the recurrences

Shapes, bytes and flops are in rwkv_lessons/operations.py, the rungs in ladders.py, what a record is
in records/, the tables and figures written from records in report/. A record is JSON,
`records/data/<gpu>/<name>.json`: where and when once, then one row per measurement.
"""
