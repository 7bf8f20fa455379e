"""`pytest --warplens`: tests of kernels run without a GPU, and fail where a kernel is wrong."""

import json
import sys

import pytest

from . import hook
from .command import add_options


def pytest_addoption(parser):
    group = parser.getgroup("warplens", "kernels of numba-cuda and numba-cuda-mlir without a GPU")
    group.addoption(
        "--warplens", action="store_true",
        help="run kernels on the CPU; a test fails where one has a race or a fault",
    )  # fmt: skip
    add_options(group, prefix="warplens-")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config, parser, args):
    """Before a conftest imports numba."""
    _start(early_config.known_args_namespace)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    _start(config.option)


def _start(options):
    if options.warplens:
        hook.start(options.warplens_races, options.warplens_seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not item.config.option.warplens:
        return (yield)
    from .findings import FOUND

    before, FOUND.test = len(FOUND), item.nodeid
    try:
        result = yield
    except BaseException:
        _hide_own_frames()
        # The test fails by itself: its report shows why its kernel may be wrong.
        if new := _new(before):
            item.add_report_section("call", "warplens found", "\n".join(map(str, new)))
        raise
    finally:
        FOUND.test = None
    if new := _new(before):
        pytest.fail("warplens found: " + "\n".join(map(str, new)), pytrace=False)
    return result


def _hide_own_frames():
    """A fault's traceback ends at the line of the kernel; pytest asks each frame's globals."""
    from ..faults import KernelFault

    def hide(info):
        return info is not None and isinstance(info.value, KernelFault)

    own, tests = __package__.partition(".")[0] + ".", __package__.partition(".")[0] + ".tests"
    for name, module in list(sys.modules.items()):
        if name.startswith(own) and not name.startswith(tests):
            module.__tracebackhide__ = hide


def _new(before):
    from .findings import FOUND

    return [x for x in list(FOUND)[before:] if not x.raised]


def pytest_sessionfinish(session):
    """With xdist, a worker hands what it found to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and session.config.option.warplens:
        from .findings import FOUND

        output["warplens"] = FOUND.as_json()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    from .findings import FOUND

    FOUND.merge(json.loads(getattr(node, "workeroutput", {}).get("warplens", "null")))


def pytest_terminal_summary(terminalreporter, config):
    if not config.option.warplens or hasattr(config, "workerinput"):
        return
    from .findings import FOUND, annotation, write

    kind = config.option.warplens_report
    terminalreporter.write_line(FOUND.summary())
    if kind == "github":
        for finding in FOUND:
            terminalreporter.write_line(annotation(finding))
    elif kind != "text":
        terminalreporter.write_line(f"written: {write(FOUND, kind)}")
