"""How long a function of the library may be, what a GPU runs may take, and what names must say."""

import ast
from collections import Counter

from rwkv_lessons.operations.entries import ROOT

MOST_LINES, MOST_ARGUMENTS = 170, 24
TEACHING = {"lab", "course.py"}
# (file, function): why it has more arguments.
EXCEPTIONS = {
    (
        "wkv6/chunked/hopper/sweep.py",
        "sweep_hopper_kernel",
    ): "22 tensors, 4 of them as tiles and as rows",
    (
        "wkv6/chunked/hopper/wide_sweep.py",
        "wkv6_wide_sweep_kernel",
    ): "20 tensors, 4 of them as tiles and as rows",
    (
        "wkv7/chunked/hopper/gradients.py",
        "wkv7_tile_gradients_kernel",
    ): "22 tensors, 6 of them as tiles and as rows",
    (
        "wkv7/chunked/hopper/forward.py",
        "wkv7_hopper_kernel",
    ): "22 tensors, 8 of them as tiles and as rows; 4 are of the identity",
    (
        "wkv7/chunked/hopper/reverse.py",
        "wkv7_reverse_kernel",
    ): "16 tensors, 5 of them as tiles and as rows; 2 are of the identity",
    ("wkv7/chunked/hopper/gradients.py", "gradients_of_tile"): "a tile of each of them",
    (
        "wkv7/chunked/hopper/wide/gradients.py",
        "wkv7_wide_gradients_kernel",
    ): "23 tensors, 5 of them as tiles and as rows",
    ("wkv6/chunked/hopper/forward.py", "wkv6_hopper_kernel"): "lesson 21 traces it, by these names",
    ("mla/decode/hopper.py", "decode_hopper_kernel"): "10 tensors, and 14 numbers",
    ("wkv6/recurrent/backward.py", "wkv6_recurrent_bwd_kernel"): "17 tensors, and 7 numbers",
    ("wkv7/recurrent/backward.py", "wkv7_recurrent_bwd_kernel"): "19 tensors, and 7 numbers",
}


def functions():
    """((file, name), definition) of every function of the library."""
    library = ROOT / "rwkv_lessons"
    for file in sorted(library.rglob("*.py")):
        place = file.relative_to(library)
        if place.parts[0] not in TEACHING:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    yield (place.as_posix(), node.name), node


def is_jitted(node):
    decorators = [x.func if isinstance(x, ast.Call) else x for x in node.decorator_list]
    return any(getattr(x, "attr", None) == "jit" for x in decorators)


def arguments(node):
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)


def test_no_function_is_longer_than_a_reader_holds():
    lengths = {key: node.end_lineno - node.lineno + 1 for key, node in functions()}
    long = {key: n for key, n in lengths.items() if n > MOST_LINES}
    assert len(lengths) > 1000 and not long


def test_no_kernel_has_more_arguments_but_those_with_a_reason():
    counts = {key: arguments(node) for key, node in functions() if is_jitted(node)}
    many = {key for key, n in counts.items() if n > MOST_ARGUMENTS}
    assert len(counts) > 100
    assert many == set(EXCEPTIONS), "group constants in a NamedTuple, as wkv7/chunked/sweep.py does"


# Names that say how a value came to be, instead of what it is.
EMPTY_NAMES = {"found", "given", "known", "said", "made", "kept", "seen", "left", "wanted", "taken"}
EMPTY_NAMES |= {"told", "asked", "held", "thing"}
# Room: how many parameters and local variables have one at most; none in rooms not named here.
# `left` is a side, a factor or how many tokens are left; `seen`, of the public `roofline`.
MOST_EMPTY_NAMES = {
    "lab": 13,
    "wkv5": 2,
    "wkv6": 5,  # the keyword `kept` is in the fingerprints of records
    "wkv7": 18,
    "warplens": 13,
}


def own_names(tree):
    """The names that functions give to parameters and local variables, once a place."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id, node.lineno, node.col_offset
                elif isinstance(node, ast.arg):
                    yield node.arg, node.lineno, node.col_offset


def test_local_names_say_what_a_value_is():
    counts = Counter()
    for package in ("rwkv_lessons", "warplens", "tests/support"):
        for file in sorted((ROOT / package).rglob("*.py")):
            room = file.relative_to(ROOT / package).parts[0].removesuffix(".py")
            room = room if package == "rwkv_lessons" else package
            tree = ast.parse(file.read_text(encoding="utf-8"))
            counts[room] += sum(name in EMPTY_NAMES for name, *_ in {*own_names(tree)})
    more = {room: n for room, n in counts.items() if n > MOST_EMPTY_NAMES.get(room, 0)}
    assert len(counts) > 15 and not more, "name the thing: launches, inputs, cached, message"
