"""Which methods the functions took that pick one: a row's code is theirs, and no other method's."""

import contextlib
import inspect
from importlib import import_module
from unittest import mock

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.records.fingerprint import source_of
from rwkv_lessons.records.schema import code


def that_pick():
    """The packages with a `method_for`."""
    names = dict.fromkeys(operation.package for operation in OPERATIONS.values())
    packages = [import_module(f"rwkv_lessons.{name}") for name in names]
    return [package for package in packages if hasattr(package, "method_for")]


@contextlib.contextmanager
def methods_taken():
    """A dict that fills with the methods which calls take meanwhile, as `fingerprint` asks."""
    by_source = {}
    with contextlib.ExitStack() as stack:
        for package in that_pick():
            if hasattr(package, "_methods"):  # else a call like one before does not ask
                stack.enter_context(mock.patch.dict(package._methods, clear=True))
            noting = _noting(package, by_source)
            stack.enter_context(mock.patch.object(package, "method_for", noting))
        yield by_source


def _noting(package, by_source):
    method_for = package.method_for

    def noting(*sizes, **more):
        name = method_for(*sizes, **more)
        by_source[source_of(inspect.unwrap(package.METHODS[name]))] = name
        return name

    noting.unchecked = noting
    return noting


def code_of(sources, run):
    """The fields of a `Measurement` that say which code it is of: of what `run()` takes as well."""
    with methods_taken() as methods_called:
        run()
    return code(*sources, *sorted(methods_called))
