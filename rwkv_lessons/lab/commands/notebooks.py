"""A learner's notebooks: copies in work/, the exercises in them, and how to run one by itself.

nbformat is imported where it is needed: it takes seconds, and `lessons next` does without.
"""

import ast
import asyncio
import contextlib
import datetime
import hashlib
import io
import json
import linecache
import os
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

from ..course import exercises, language, progress, translation
from ..course.check import check, evaluate
from . import slicing

BACKUPS, COPIED = "backups", ".copied.json"


def work() -> Path:
    """Where the copies lie; git ignores it, so that updates of the lessons never conflict."""
    return exercises.ROOT / "work"


def start() -> dict[str, list[str]]:
    """Copies the lessons to work/. A copy that the learner changed is never overwritten.

    What was copied is remembered, so that a copy that is still as it was follows its lesson.

    Returns:
        Names of notebooks by what became of them: `moved` to the lesson's new number and kept,
        `new`, `updated` to the lesson as it is now, `same` as the lesson, `kept` as the learner's.
    """
    work().mkdir(exist_ok=True)
    memory = work() / COPIED
    copied = json.loads(memory.read_text()) if memory.exists() else {}
    became = {"moved": _renumber(copied), "new": [], "updated": [], "same": [], "kept": []}
    for lesson in sorted(exercises.NOTEBOOKS.glob("*.ipynb")):
        copy, name = work() / lesson.name, lesson.name
        content = _in_language(lesson)
        now = hashlib.sha256(content).hexdigest()
        there = _digest(copy) if copy.exists() else None
        status = "new" if there is None else "updated" if there == copied.get(name) else "kept"
        status = "same" if there == now else status
        if status in ("new", "updated"):
            copy.write_bytes(content)
        if status != "kept":
            copied[name] = now
        if name not in became["moved"]:
            became[status].append(name)
    memory.write_text(json.dumps(copied, indent=1))
    return became


def speak(chosen: str) -> None:
    """Keeps the language in which lessons are copied, and checks and hints speak.

    Raises:
        ValueError: there is no such language.
    """
    if chosen != language.ENGLISH:
        translation.texts(chosen)
    progress.note_language(chosen)


def _in_language(lesson):
    """What a copy of a lesson has: the lesson, or its translation where there is one."""
    chosen = language.language()
    if chosen == language.ENGLISH:
        return lesson.read_bytes()
    import nbformat

    from . import translated

    if lesson not in translated.lessons(chosen):
        return lesson.read_bytes()
    notebook = translated.notebook(lesson, chosen)
    for cell in notebook.cells:
        for english, page in translation.pages(chosen).items():
            links = (f"](../{p.relative_to(exercises.ROOT)}" for p in (english, page))
            if cell.cell_type == "markdown":
                cell.source = cell.source.replace(*links)
    return nbformat.writes(notebook).encode()


def _renumber(copied):
    """Gives copies the numbers that their lessons have now, in their names and in their cells.

    Returns those that the learner had changed; others are removed, and copied anew. What they were
    is kept among the backups.
    """
    lessons = {progress.name_of(p.stem): p.stem for p in exercises.NOTEBOOKS.glob("*.ipynb")}
    moved = []
    for copy in sorted(work().glob("[0-9][0-9]_*.ipynb")):
        now = lessons.get(progress.name_of(copy.stem), copy.stem)
        target = work() / f"{now}.ipynb"
        if now == copy.stem or target.exists() or copy.stem in lessons.values():
            continue
        text = copy.read_text(encoding="utf-8")
        if _digest(copy) != copied.pop(copy.name, None):
            target.write_text(text.replace(copy.stem, now), encoding="utf-8")
            moved.append(target.name)
        (work() / BACKUPS).mkdir(exist_ok=True)
        copy.replace(work() / BACKUPS / copy.name)
    return moved


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Loop(asyncio.SelectorEventLoop):
    """Leaves Ctrl-C to asyncio, which ends the run and its kernel and raises KeyboardInterrupt.

    nbclient's own handler only ends the kernel, so that the run fails in one of several ways.
    """

    def add_signal_handler(self, *_):
        raise RuntimeError("not here")  # as outside the main thread, where nbclient does without


def execute(lesson: Path) -> bool:
    """Runs a notebook from top to bottom and keeps what it shows; nothing else in it changes.

    Returns whether that differed from what it showed before. Raises what a cell raised, and
    KeyboardInterrupt after Ctrl-C: then the file is as it was, and the kernel has ended.
    """
    import nbformat
    from nbclient import NotebookClient  # slow to import, and for this command alone

    before = nbformat.read(lesson, 4)
    notebook = deepcopy(before)
    path = os.environ.get("PYTHONPATH", "")
    surroundings = {"RWKV_LESSONS_PROGRESS": "off", language.VARIABLE: language.ENGLISH}
    surroundings["PYTHONPATH"] = f"{exercises.ROOT}:{path}"
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(lesson.parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # 7.4 warns that a local port is plain
    )  # fmt: skip
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(_cancellable(client, os.environ | surroundings))
    notebook.metadata = before.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    if notebook == before:
        return False
    nbformat.write(notebook, lesson)
    return True


async def _cancellable(client, env):
    """Runs a client's notebook; cancelled, ends the kernel at once, whatever nbclient raises."""
    manager = client.create_kernel_manager()
    execution = asyncio.ensure_future(client.async_execute(env=env))
    try:
        await asyncio.shield(execution)
    except asyncio.CancelledError:
        client.shutdown_kernel = "immediate"  # else it finishes its cell, and complains
        execution.cancel()
        await asyncio.gather(execution, return_exceptions=True)
        if manager.has_kernel:  # it was starting, when nbclient does not end it
            await manager.shutdown_kernel(now=True)
        client.km = manager  # nbclient may look at it once more when Python ends
        raise


def _joined(outputs):
    """What a cell printed in one piece, however many pieces it came in."""
    whole = []
    for output in outputs:
        last = whole[-1] if whole else {}
        if output.output_type == "stream" == last.get("output_type") and output.name == last.name:
            last.text += output.text
        else:
            whole.append(output)
    return whole


def notebook_of(stem: str) -> Path:
    """The learner's notebook: the copy in work/, or the lesson itself where there is none."""
    copy = work() / f"{stem}.ipynb"
    return copy if copy.exists() else exercises.NOTEBOOKS / copy.name


def relative(path: Path) -> str:
    return path.relative_to(exercises.ROOT).as_posix()


def reset(stem: str) -> tuple[int, Path]:
    """Puts the stubs back into a learner's notebook and leaves the rest of it as it is.

    Returns:
        How many cells changed, and where the notebook from before is kept.

    Raises:
        LookupError: the file is no notebook.
    """
    path = notebook_of(stem)
    _code_cells(path)  # says what is wrong with a damaged one, as nbformat does not
    import nbformat

    notebook = nbformat.read(path, 4)
    changed = _derive(notebook)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    backup = work() / BACKUPS / f"{stem}-{now}.ipynb"
    if changed:
        backup.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, backup)
        nbformat.write(notebook, path)
    return changed, backup


def sync(write: bool = True) -> list[str]:
    """Derives what other files decide in the lessons; returns which lessons differed.

    That is: stubs, from solutions/; signposts; the alternative text of a picture, from its text.
    """
    import nbformat

    from . import signposts

    differed = []
    for path in sorted(exercises.NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        changed = (
            _derive(notebook) + signposts.derive(notebook, path) + _say_what_is_shown(notebook)
        )
        if changed:
            differed.append(path.name)
            if write:
                nbformat.write(notebook, path)
    return differed


def _derive(notebook):
    """Gives every exercise cell its stub; counts the cells that changed."""
    changed = 0
    for cell in notebook.cells:
        if id := cell.metadata.get("exercise"):
            stub = exercises.stub(id)
            if cell.source != stub:
                cell.source, cell.outputs, cell.execution_count = stub, [], None
                changed += 1
    return changed


def _say_what_is_shown(notebook):
    """Gives every picture of the outputs its alternative text; counts those that had another."""
    from warplens.pictures.style import in_one_line

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output for output in outputs if "image/png" in output.get("data", {})]
    before = [output.metadata.get("image/png", {}).get("alt") for output in shown]
    for output in shown:
        about = output.metadata.setdefault("image/png", {})
        about["alt"] = in_one_line(output.data.get("text/plain", ""))
    return sum(o.metadata["image/png"]["alt"] != old for o, old in zip(shown, before, strict=True))


def function_of(id: str) -> Callable:
    """The learner's function, as the exercise's check would be given it in the notebook.

    Of the cells above the check, the exercise's own is run, and of the others those statements that
    the function depends on: imports, constants, helpers, earlier answers. Measurements and plots
    are not.

    Raises:
        LookupError: the file is no notebook, it has no such cell, or no cell defines the function.
        Exception: whatever the learner's code raises.
    """
    stem, _, name = id.partition(".")
    path = notebook_of(stem)
    if not path.exists():
        raise LookupError(f"there is no {relative(path)}")
    cells, own = _above_the_check(_code_cells(path), id)
    if own is None:
        raise LookupError(f"{relative(path)} has no cell of {id} any more")
    statements, files = [], [f"{path.name}, cell {n + 1}" for n in range(len(cells))]
    for n, cell in enumerate(cells):
        try:
            tree = slicing.parsed(_source(cell), files[n])
            statements += slicing.statements_of(tree, n)
        except SyntaxError:  # a scratch cell, not ours to judge
            if n == own:
                raise
    namespace: dict = {"__name__": "lesson"}
    for statement in slicing.needed(statements, name, own):
        n = statement.cell
        out = sys.stdout if n == own else io.StringIO()  # what other cells print was read there
        with contextlib.redirect_stdout(out):
            _run(statement.node, _source(cells[n]), files[n], namespace)
    if name not in namespace:
        raise LookupError(f"the cell of {id} in {relative(path)} does not define {name}")
    return namespace[name]


def text_of(id: str) -> str:
    """The text of the exercise's own cell; empty where the notebook or the cell is missing."""
    try:
        cells, own = _above_the_check(_code_cells(notebook_of(id.partition(".")[0])), id)
    except (OSError, LookupError):
        return ""
    return "" if own is None else _source(cells[own])


def text_above(id: str) -> str:
    """The text of the exercise's cell and of those above its check, where `function_of` looks.

    Empty where the notebook cannot be read, as while it is being written.
    """
    try:
        cells, own = _above_the_check(_code_cells(notebook_of(id.partition(".")[0])), id)
    except LookupError:
        return ""
    return "" if own is None else "\n".join(map(_source, cells))


def _code_cells(path):
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [cell for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise LookupError(
            f"{relative(path)} is damaged, no notebook any more: rename it,"
            " and `lessons start` copies the lesson again"
        ) from None


def _source(cell):
    return "".join(cell["source"])


def _above_the_check(code, id):
    """The cells that run before the check of an exercise, and the number of the exercise's own.

    Of a cell that was duplicated the lower one counts, as in Jupyter.
    """
    own = [n for n, cell in enumerate(code) if cell["metadata"].get("exercise") == id]
    if not own:
        return [], None
    checks = [n for n, cell in enumerate(code) if cell["metadata"].get("check") == id]
    return code[: max([own[-1] + 1, *checks])], own[-1]


def _run(node, source, file, namespace):
    """Runs a statement of a cell under a name that tracebacks and inspect can show it by."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(ast.Module([node], []), file, "exec"), namespace)
    if namespace.get("check") is check:
        namespace["check"] = evaluate  # of earlier exercises: the same result, and no word of it
