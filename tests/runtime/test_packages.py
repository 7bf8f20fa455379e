"""A Triton that is newer than those tested is named; an older one is not."""

import re
import warnings

import pytest

from rwkv_lessons.runtime import packages
from rwkv_lessons.runtime.packages import (
    NEWEST_TRITON,
    WRONG_TRITON,
    minor,
    refuse_wrong_triton,
    warn_of_untried_triton,
)


@pytest.mark.parametrize("version", ["4.0.0+git1234", "3.10.1"])
def test_a_triton_that_nobody_tried_is_warned_of(version):
    with pytest.warns(UserWarning, match=re.escape(version) + ".*rwkv_lessons.verify"):
        warn_of_untried_triton(version)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.7.2+rocm", "3.9.0"])
def test_a_triton_that_was_tried_is_not(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried_triton(version)


def test_the_lock_has_a_triton_that_was_tried():
    triton = pytest.importorskip("triton")
    assert minor(triton.__version__) <= NEWEST_TRITON
    assert minor(triton.__version__) != WRONG_TRITON


def test_a_triton_that_compiles_wrong_is_warned_of_and_its_calls_refused():
    with pytest.warns(UserWarning, match="3.8.0 compiles two kernels wrong.*3.7 and 3.9"):
        warn_of_untried_triton("3.8.0")
    with pytest.raises(RuntimeError, match="Triton 3.8.0 compiles x wrong.*compilers.md"):
        refuse_wrong_triton("x", "3.8.0")
    refuse_wrong_triton("x", "3.9.0")
    with pytest.raises(RuntimeError, match="compiles x wrong"):  # each time
        refuse_wrong_triton("x", "3.8.0")


def test_tritons_version_is_read_once(monkeypatch):
    refuse_wrong_triton("y", "3.7.0")
    monkeypatch.setattr(packages, "minor", lambda version: pytest.fail("it is known"))
    refuse_wrong_triton("y", "3.7.0")


def test_a_package_that_is_missing_names_its_install(monkeypatch):
    monkeypatch.setitem(packages.INSTALL, "not_there_at_all", "pip install it")
    with pytest.raises(ModuleNotFoundError, match="x needs not_there_at_all.*pip install it"):
        with packages.needed_by("x"):
            __import__("not_there_at_all")
