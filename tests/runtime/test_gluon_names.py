"""Gluon's older names work with a Triton that renamed them, and stay as they are with others."""

import types

import pytest

pytest.importorskip("triton")
from rwkv_lessons.runtime import gluon_names  # noqa: E402


def test_a_renamed_function_gets_its_older_name_back(monkeypatch):
    renamed = types.SimpleNamespace(load="the function", copy="raises")
    older = types.SimpleNamespace(copy="the function")
    places = (renamed, "copy", "load"), (older, "copy", "load")
    monkeypatch.setattr(gluon_names, "NEWER", places)
    gluon_names.restore_older_names()
    assert renamed.copy == "the function" and vars(older) == {"copy": "the function"}


def test_the_names_that_kernels_use_are_there():
    for place, older, _ in gluon_names.NEWER:
        assert callable(getattr(place, older))
