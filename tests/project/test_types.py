"""What a type checker is told of the public functions is what they take."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import rwkv_lessons

HOME = Path(rwkv_lessons.__file__).parent
STUBS = sorted(HOME.rglob("*.pyi"))
KINDS = inspect.Parameter


def module_of(stub):
    parts = stub.relative_to(HOME.parent).with_suffix("").parts
    return importlib.import_module(".".join(p for p in parts if p != "__init__"))


def functions(stub):
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    return {n.name: n.args for n in tree.body if isinstance(n, ast.FunctionDef)}


def told(arguments):
    """(name, kind, default) of a stub's parameters; a default of `...` is any."""
    places = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(places) - len(arguments.defaults)) + arguments.defaults
    yield from (
        (a.arg, KINDS.POSITIONAL_OR_KEYWORD, d) for a, d in zip(places, defaults, strict=True)
    )
    if arguments.vararg:
        yield arguments.vararg.arg, KINDS.VAR_POSITIONAL, None
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from ((a.arg, KINDS.KEYWORD_ONLY, d) for a, d in named)
    if arguments.kwarg:
        yield arguments.kwarg.arg, KINDS.VAR_KEYWORD, None


def agrees(parameter, name, kind, default):
    if (parameter.name, parameter.kind) != (name, kind):
        return False
    if default is None or parameter.default is KINDS.empty:
        return default is None and parameter.default is KINDS.empty
    return ast.unparse(default) in ("...", repr(parameter.default))


def differences(stub):
    module = module_of(stub)
    for name, arguments in functions(stub).items():
        if name == "__getattr__" or arguments.vararg and arguments.vararg.arg == "args":
            continue  # as it says, of anything
        real = list(inspect.signature(getattr(module, name)).parameters.values())
        said = list(told(arguments))
        if len(real) != len(said) or not all(
            agrees(p, *s) for p, s in zip(real, said, strict=True)
        ):
            yield f"{name}{inspect.signature(getattr(module, name))}"


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: str(path.relative_to(HOME)))
def test_a_stub_has_the_parameters_of_its_functions(stub):
    assert list(differences(stub)) == []


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: str(path.relative_to(HOME)))
def test_a_stub_names_all_that_is_public(stub):
    module, text = module_of(stub), stub.read_text(encoding="utf-8")
    for name in getattr(module, "__all__", ()):
        assert f" {name}(" in text or f" as {name}\n" in text or f"{name}:" in text, name


def test_another_parameter_is_seen(tmp_path, monkeypatch):
    stub = HOME / "wkv6" / "__init__.pyi"
    changed = tmp_path / "rwkv_lessons" / "wkv6" / "__init__.pyi"
    changed.parent.mkdir(parents=True)
    for before, after in [("raw_decay", "raw"), ("scale: float = 1.0", "scale: float = 2.0")]:
        assert before in stub.read_text()
        changed.write_text(stub.read_text().replace(before, after))
        monkeypatch.setattr(
            f"{__name__}.module_of", lambda _: importlib.import_module("rwkv_lessons.wkv6")
        )
        assert len(list(differences(changed))) >= 4


SCRIPT = """
import torch
from rwkv_lessons.inputs import rwkv6_inputs
from rwkv_lessons.interop.fla import chunk_rwkv6
from rwkv_lessons.wkv6 import wkv6, wkv6_step
from rwkv_lessons.wkv7 import wkv7

r, k, v, w, u = rwkv6_inputs(1, 8)
o, s1 = wkv6(r, k, v, w, u, scale=0.5)
one: torch.Tensor = wkv6_step(r, k, v, w, u, s1)
_, last = chunk_rwkv6(r, k, v, w, u)
last.sum()
wkv7(r, w, k, v, r, r, decay="rwa")
wkv6(r, k, v, w, u, scal=0.5)
"""


def test_mypy_knows_what_a_users_script_calls(tmp_path):
    """In a workflow: mypy is not among what `make test` installs, and takes half a minute."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(SCRIPT)
    said, *_ = api.run(["--strict", "--cache-dir", str(tmp_path), str(tmp_path / "user.py")])
    faults = [line.partition(": error: ")[::2] for line in said.splitlines() if ": error: " in line]
    lines = [place.rpartition(":")[2] for place, _ in faults]
    assert lines == ["12", "13", "14"], said
    assert all(x in text for (_, text), x in zip(faults, ("None", "decay", "scal"), strict=True))
