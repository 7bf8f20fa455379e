"""The command that times steps of a model, on a small one; and what it needs of a machine."""

import pytest
import torch

from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands import record_all
from rwkv_lessons.operations.distributed import SEQUENCE_PARALLEL

WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="what it says without a GPU")


@WITHOUT
def test_a_small_model_learns_with_each_recurrence(capsys):
    main(["train", "--quick", "--shape", "2,8,1,16", "--methods", "wkv6,plain torch"])
    said = capsys.readouterr().out
    for method in ("wkv6:", "wkv6, synthetic:", "plain torch:"):
        assert any(line.startswith(method) and "of it the recurrence" in line
                   for line in said.splitlines())  # fmt: skip


@WITHOUT
def test_without_a_gpu_nothing_is_recorded():
    for command in ("train",):
        with pytest.raises(SystemExit, match="--quick"):
            main([command])
        with pytest.raises(SystemExit, match="not recorded"):
            main([command, "--quick", "--record"])


def test_a_record_of_two_gpus_is_left_out_where_there_is_one(monkeypatch):
    (plan,) = SEQUENCE_PARALLEL.records
    monkeypatch.setattr(record_all, "_gpus", lambda: 1)
    ((_, how),) = record_all.record_all([plan], ready="import sys; sys.stdin.readline()")
    assert how == "skipped: needs 2 GPUs"
