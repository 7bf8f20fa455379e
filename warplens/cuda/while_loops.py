"""A kernel's `while` loops as `for` loops over their turns, so that the tracer can number these."""

import ast
import functools
import inspect
import textwrap

TURNS = "turns of a while loop"  # a global name that no kernel has


def with_turns(function):
    """The code of `function` with `while x: …` as `for … in TURNS(): if not x: break; …`.

    Or as it is, where its text is not there, or is no longer the text that was compiled.
    """
    return _with_turns(function.__code__, function.__code__.co_filename)


@functools.lru_cache(256)
def _with_turns(code, file):
    """Of a code object, which equals those of other files."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return code
    ast.increment_lineno(tree, first - 1)
    if not any(isinstance(node, ast.While) for node in ast.walk(tree)):
        return code
    again = _compiled(tree, code)
    if again is None or _outline(again) != _outline(code):
        return code
    return _compiled(ast.fix_missing_locations(Numbered().visit(tree)), code)


def _outline(code):
    """What tells a definition from another; bytecode depends on the imports around it."""
    lines = {line for _, _, line in code.co_lines()} - {code.co_firstlineno}  # a decorator's
    constants = [x for x in code.co_consts if not inspect.iscode(x)]
    return code.co_names, code.co_varnames, code.co_freevars, constants, lines


class Numbered(ast.NodeTransformer):
    def visit_While(self, node):
        self.generic_visit(node)
        if node.orelse:
            return node
        turn, turns = ast.Name("turn of a while loop", ast.Store()), ast.Name(TURNS, ast.Load())
        leave = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
        loop = ast.For(turn, ast.Call(turns, [], []), [leave, *node.body], [])
        for new in (turn, turns, leave, leave.test, leave.body[0], loop, loop.iter):
            ast.copy_location(new, node.test)
        return loop


def _compiled(tree, code):
    """The code that this definition gives where the one of `code` stands; None if it has none."""
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return None
    definition.decorator_list = []
    around = ast.parse(f"def around({', '.join(code.co_freevars)}): pass")  # they are free in it
    around.body[0].body = [definition]
    module_code = compile(around, code.co_filename, "exec", dont_inherit=True)
    (outer,) = (part for part in module_code.co_consts if inspect.iscode(part))
    return next(part for part in outer.co_consts if inspect.iscode(part))
