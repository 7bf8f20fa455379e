"""Times an operation, checks it first, and keeps the result.

python -m rwkv_lessons.bench wkv5         every method of the library, one row each
python -m rwkv_lessons.bench ladder wkv5  every rung of the lessons' ladder
python -m rwkv_lessons.bench profile wkv5 what torch launches without a kernel of ours
python -m rwkv_lessons.bench wkv6-decode  one token, with the state in and out
python -m rwkv_lessons.bench first        the first call of a fresh process, which compiles
python -m rwkv_lessons.bench mla-decode   a query token against a latent cache
python -m rwkv_lessons.bench mla-prefill  latent attention of a whole prompt
python -m rwkv_lessons.bench mla-generate a whole MiniCPM3-4B that writes text
python -m rwkv_lessons.bench mla-ladder   a step of it, rung by rung of the lessons
python -m rwkv_lessons.bench ceilings     what this card can do at most
python -m rwkv_lessons.bench record-all   all of these, and keeps them; --list, --needed
python -m rwkv_lessons.bench readme       the README's tables and figures, from the records

    shapes.py   the shapes, bytes and flops of each operation
    rungs.py    the steps of the lessons' ladders, and where to find them
    methods.py  a library function, a rung or a peer as something that can be checked and timed
    decode.py   one token of WKV-6, eager and as a CUDA graph
    first.py    the first call of a fresh process
    peers.py    other people's packages, if they are installed
    timing.py   device time, host time, memory
    measure.py  one method: check against float64, then time
    profile.py  the torch loop, kernel by kernel
    mla.py      latent attention, its shapes and inputs being others
    mla_ladder.py, mla_prefill.py, mla_generate.py, record_all.py   the commands of these names
    roofline.py the least time a card could take
    blocks.py   the tables of the README, from the records
    record.py   what is written down, and where
    source.py   a fingerprint of a kernel's source: a record is stale when it has changed

Records are JSON, `records/<card>/<name>.json`: where and when once, then one row per measurement.
"""
