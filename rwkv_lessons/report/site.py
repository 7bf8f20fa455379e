"""The course as pages for Sphinx: `python -m rwkv_lessons.report.site FOLDER`, or `make site`.

Nothing is executed: lessons come with their stored outputs. Pages keep their places in the
repository, so that links between them stay as they are; what is added or changed:

- README.md is the front page, behind a first screen (landing.py), with the tree of all pages;
- a lesson's page says where it can be opened, and brings its notebook along;
- a figure becomes a file, with the sentence that says the same as its alternative text;
- an exercise gets its hints and a solution, folded;
- `api/` has a page for each part of the library, whose docstrings Sphinx fills in;
- a file that a page links to and that is no page itself is copied.
"""

import argparse
import ast
import base64
import html
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell

from rwkv_lessons.lab.commands import signposts
from rwkv_lessons.lab.commands.translated import notebook as translated_notebook
from rwkv_lessons.lab.course import exercises, language
from rwkv_lessons.lab.course.language import say
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report import landing, translated
from rwkv_lessons.report.tables import RECORDS_OF
from rwkv_lessons.runtime.command_line import run
from warplens.pictures.style import in_one_line

# Titles of the parts, and the number of each part's first lesson.
PARTS = {
    "Start": 0,
    "The operation": 1,
    "CUDA, in numba": 3,
    "A second ladder": 10,
    "Triton": 12,
    "Hopper, in Gluon": 19,
    "RWKV-7": 22,
    "Latent attention": 25,
    "Out into the world": 29,
}
DOCS = {
    "The terms": ("glossary",),
    "The library": tuple(
        "library generate training_precision serving doors kda gpus compilers".split()
    ),
    "warplens": tuple(
        "warplens_five_minutes own_kernels warplens_cudasim warplens_races warplens_model".split()
    ),
    "Results": ("results", *(f"results/{page}" for page in RECORDS_OF)),
    "How it came to be": tuple(
        f"designs_{name}" for name in ("wkv6", "wkv7", "mla", "timex", "distributed")
    ),
    "Taking part": ("teach", "architecture", "writing_a_lesson"),
    "Logs of every trial": tuple(f"appendix/{x}_log" for x in ("wkv6", "wkv7", "mla", "timex")),
}
ROOT_PAGES = ("CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY", "CHANGELOG")
# The reference: (page, title, modules). Of each module: what `__all__` names, else all that is
# public in its file.
LENS = "warplens."
LAB = (
    "lab.course.check lab.course.predict warplens.kernels warplens.cuda.trace "
    "warplens.triton.trace warplens.compiled.assembly warplens.compiled.occupancy "
    "warplens.pictures.traces warplens.pictures.steps warplens.pictures.movable "
    "lab.pictures.roofline"
)
INTEROP = (
    "albatross fla fla_kda fla_rwkv7 flash_rwkv rwkv_lm rwkv_package rwkv_peft rwkv_sglang rwkv_v3 "
    "transformers_mla transformers_rwkv wind_rwkv"
)
API = (
    ("wkv5", "RWKV-5", ("wkv5",)),
    ("wkv6", "RWKV-6", ("wkv6",)),
    ("wkv7", "RWKV-7", ("wkv7",)),
    ("mla", "Latent attention", ("mla",)),
    ("timex", "Time-x", ("timex",)),
    ("distributed", "Many GPUs", ("distributed",)),
    ("models", "Models", ("models.rwkv6", "models.rwkv7", "models.generate", "models.tasks")),
    ("interop", "Adapters", tuple(f"interop.{name}" for name in INTEROP.split())),
    ("inputs", "Inputs", ("inputs",)),
    ("lab", "The lab", tuple(LAB.split())),
)
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)


def write(folder: Path, root: Path = ROOT) -> list[Path]:
    """Writes all pages to `folder`, instead of what was there; returns them."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = {Path("index.md"): front_page(root)}
    for name in (*(f"{x}.md" for x in ROOT_PAGES), *(f"docs/{x}.md" for x in _docs(root))):
        pages[Path(name)] = page(root / name)
    pages[Path("step_through.md")] = step_through()
    pages |= {Path(f"api/{name}.md"): text for name, text in reference(root).items()}
    for path in sorted((root / "notebooks").glob("[0-9]*.ipynb")):
        pages[Path("notebooks") / path.name] = _written(lesson(path), folder)
        _put(folder / "_static" / "notebooks" / path.name, path.read_bytes())
    return _put_all(pages, folder, root)


def write_in(chosen: str, folder: Path, root: Path = ROOT) -> list[Path]:
    """Writes the pages that are translated into a language to `folder`; returns them."""
    shutil.rmtree(folder, ignore_errors=True)
    pages, sources = {}, translated.names(chosen, root)
    for place, source in sources.items():
        if place.suffix == ".ipynb":
            translation = translated_notebook(source, chosen)
            _put(folder / "_static" / place, nbformat.writes(translation).encode())
            notebook, figures = lesson(source, translation)
            for cell in notebook.cells:
                if cell.cell_type == "markdown":
                    cell.source = translated.outward(cell.source, place, {*sources}, chosen)
            pages[place] = _written((notebook, figures), folder)
        else:
            text = translated.outward(translated.page(source, chosen), place, {*sources}, chosen)
            pages[place] = _front_in(text, sources, root) if place == Path("index.md") else text
    return _put_all(pages, folder, root)


def _front_in(text, sources, root):
    """The front page in another language: its first screen, and the pages that there are."""
    text = _with_hero(text.replace("\n## ", "\n(begin)=\n## ", 1), root)
    stems = [place.stem for place in sorted(sources) if place.suffix == ".ipynb"]
    trees = {part: names for part, names in _parts(stems).items() if names}
    trees["The terms"] = [str(x.with_suffix("")) for x in sorted(sources) if x.parts[0] == "docs"]
    return text + _trees(trees)


def _written(page, folder):
    """The text of a lesson's notebook, whose figures become files."""
    notebook, figures = page
    for name, png in figures.items():
        _put(folder / "notebooks" / name, png)
    return nbformat.writes(notebook)


def _put_all(pages, folder, root):
    _put(folder / "_static" / "card.png", landing.card())
    ladder = root / "docs" / "figures" / "wkv5-ladder.svg"
    _put(folder / "_static" / "ladder.svg", ladder.read_bytes())
    for name, text in pages.items():
        _put(folder / name, text.encode())
        for target in _links(root / name, text, root):
            _put(folder / target, (root / target).read_bytes())
    return [folder / name for name in pages]


def _put(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _docs(root):
    """The pages of docs/ and of its appendix, those that DOCS does not name at the end."""
    named = [name for names in DOCS.values() for name in names]
    folders = (root / "docs" / x for x in ("", "results", "appendix"))
    files = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    pages = [str(path.relative_to(root / "docs").with_suffix("")) for path in files]
    return [name for name in named if name in pages] + [n for n in pages if n not in named]


def _links(page, text, root):
    """Files of the repository that a page links to and that are no pages, from its root."""
    for target in LINK.findall(CODE.sub("", text)):
        file = (page.parent / target).resolve()
        if file.is_file() and file.suffix not in (".md", ".ipynb"):
            yield file.relative_to(root)


def page(path: Path) -> str:
    """A page of Markdown as Sphinx takes it."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"\]\((?:\.\./)?README\.md", lambda m: m[0].replace("README", "index"), text)


def front_page(root: Path = ROOT) -> str:
    """The first screen, README.md, and the tree of all pages, which the side bar shows."""
    text = re.sub(r" ?\[[^]]+\]\(README\.\w+\.md\)", "", page(root / "README.md"))
    text = _with_hero(text, root)
    trees = _parts(sorted(path.stem for path in (root / "notebooks").glob("[0-9]*.ipynb")))
    unplaced = _docs(root)
    trees["Look closer"] = ["step_through"]
    for part, names in DOCS.items():
        trees[part] = [f"docs/{name}" for name in names if name in unplaced]
        unplaced = [name for name in unplaced if name not in names]
    trees["Taking part"] += [*(f"docs/{name}" for name in unplaced), *ROOT_PAGES]
    trees["Reference"] = [f"api/{name}" for name, *_ in API]
    return text + _trees(trees)


def _with_hero(text, root):
    title, _, text = text.partition("\n")
    picture = re.search(r"^!\[.*wkv5-ladder.svg\)\n", text, re.M)
    text = text.replace(picture[0], "") if picture else text  # the first screen has it
    return f"{title}\n\n```{{raw}} html\n{landing.hero(root)}```\n{text}"


def _parts(stems):
    """{part: pages of its lessons}."""
    firsts = [*PARTS.values(), 100]
    return {
        part: [f"notebooks/{s}" for s in stems if first <= int(s[:2]) < after]
        for part, first, after in zip(PARTS, firsts, firsts[1:], strict=False)
    }


def _trees(trees):
    """The side bar."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {say(part)}\n\n" + "\n".join(names) + "\n```\n"
        for part, names in trees.items()
        if names
    )


AS_SHIPPED = (
    "*This is the lesson as shipped, without predictions or answers. To make your own and have "
    "them checked, [begin here](../index.md#begin).*"
)


def lesson(path: Path, notebook=None):
    """A lesson's notebook, or its translation, for the site; its figures, {file name: PNG}."""
    notebook = notebook or nbformat.read(path, 4)
    figures, cells = {}, []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(\.\./README\.md", "](../index.md", cell.source)
        else:
            for output in cell.outputs:
                _draw(output, figures, path.stem)
        cells.append(cell)
        if id := cell.metadata.get("exercise"):
            cells.append(new_markdown_cell(folded_help(id), id=f"help-{len(cells)}"))
    signs = f"{say(AS_SHIPPED)}\n\n{landing.try_it(path.stem)}"
    notebook.cells = [cells[0], new_markdown_cell(signs, id="as-shipped"), *cells[1:]]
    return notebook, figures


def _draw(output, figures, stem):
    """Puts a figure of an output into a file."""
    png = output.get("data", {}).get("image/png")
    if not png:
        return
    name = f"images/{stem}-{len(figures) + 1}.png"
    figures[name] = base64.b64decode(png)
    size = output.metadata.get("image/png", {})
    width = f"{{width={size['width']}px}}" if "width" in size else ""
    text = f"![{_escaped(alternative(output).replace('`', ''))}]({name}){width}"
    output.data = {"text/markdown": text}


def alternative(output) -> str:
    """What a screen reader says of a figure: the sentence that the figure came with."""
    described = output.metadata.get("image/png", {}).get("alt")  # in the lesson's language
    return described or in_one_line(output["data"].get("text/plain", ""))


def _escaped(text):
    """Text of which nothing is taken for Markdown but code between backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\`*_\[\]<>$])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def folded_help(id: str) -> str:
    """The hints of an exercise, its solution and why it works, each behind a line to click."""
    exercise = exercises.load(id)
    parts = [
        f'<details class="help"><summary>{say(f"Hint {n}")}</summary>{_in_html(text)}</details>'
        for n, text in enumerate(map(say, exercise.hints), 1)
    ]
    lines = [f"- `{line}`: {_escaped(say(why))}" for line, why in _why(exercise)]
    parts.append(
        f'<details class="help"><summary>{say("A solution")}</summary>\n\n'
        f"```python\n{exercise.solution}\n```\n\n" + "\n".join(lines) + "\n\n</details>"
    )
    return "\n\n".join(parts)


def _why(exercise):
    return exercise.afterwards.why.items() if exercise.afterwards else ()


def _in_html(text):
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return f"<pre>{safe}</pre>" if "\n" in text else f"<p>{safe}</p>"


STEP_THROUGH = """# Step through a kernel

This page shows the first warp of a launch, request by request, as the simulator runs it: which
bytes its 32 lanes access. All kernels have the same inputs: 2 tokens, 1 head of 64. Step with the
buttons or the arrow keys. In a notebook, `stepper(trace(kernel, …))` of `warplens.pictures.steps`
shows your own kernel in the same way.
"""
STEPPED = {
    "04_drop_the_atomics.kernel": "Each request loads one value, the same one for all lanes.",
    "05_float4.kernel": "Each request loads four values.",
    "07_shared_memory.shared": "Each lane loads one value, and all read it from shared memory.",
}


def step_through() -> str:
    """A page on which three kernels of the ladder can be stepped through."""
    from rwkv_lessons.lab.evidence.cuda import wkv5_arrays
    from warplens.kernels import trace
    from warplens.pictures.steps import stepper

    text, sizes = STEP_THROUGH, (1, 2, 1, 64)
    for id, why in STEPPED.items():
        stem = id.partition(".")[0]
        grid, block = (1, 64) if stem.startswith("07") else (2, 32)
        steps = trace(exercises.load(id).reference, grid, block, *wkv5_arrays(*sizes))
        picture = stepper(steps, most=80)._repr_html_()
        lesson = Path("notebooks") / f"{stem}.ipynb"
        text += f"\n## {signposts.title(ROOT / lesson)}\n\n{why} [The lesson]({lesson}).\n\n"
        text += f"```{{raw}} html\n{picture}\n```\n"
    return text


# The reference.


def reference(root: Path = ROOT) -> dict[str, str]:
    """{name: text} of the pages of the API reference."""
    return {name: _reference(title, modules, root) for name, title, modules in API}


def _reference(title, modules, root):
    parts = [f"# {title}"]
    for module in modules:
        if len(modules) > 1:
            parts.append(f"## {module}")
        full = module if module.startswith(LENS) else f"rwkv_lessons.{module}"
        text = f".. automodule:: {full}\n   :no-members:\n"
        for kind, name in public(module, root):
            text += f"\n.. auto{kind}:: {full}.{name}\n"
            text += "   :members:\n" if kind == "class" else ""
        parts.append(f"```{{eval-rst}}\n{text}```")
    return "\n\n".join(parts) + "\n"


def public(module: str, root: Path = ROOT) -> list[tuple[str, str]]:
    """("function" or "class", name) of what a module offers; read from its text, not imported."""
    top = root if module.startswith(LENS) else root / "rwkv_lessons"
    path = top / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = {ast.FunctionDef: "function", ast.ClassDef: "class"}
    own = {x.name: kinds[type(x)] for x in tree.body if type(x) in kinds}
    named = [  # also what is there only beside Triton or numba
        part.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AugAssign)
        and "__all__" in ast.unparse(node).partition("=")[0]
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    names = named if named and path.is_dir() else [n for n in own if n[0] != "_"]
    names.sort(key=lambda name: name != path.name)  # what a package is for comes first
    of_others = {True: "class", False: "function"}  # their definition is in another file
    return [(own.get(n, of_others[n[0].isupper()]), n) for n in names if not n.isupper()]


SECTION = re.compile(r"(Args|Returns|Raises|Attributes|Yields|Limits):$")


def as_rest(lines: list[str]) -> list[str]:
    """A docstring, which is plain text with some Markdown, as reStructuredText.

    Indented code becomes a literal block; stars and bars stand for themselves.
    """
    rest, head, literal, rows = [], "", False, []
    for n, line in enumerate(lines):
        new = n == 0 or not lines[n - 1].strip()
        if line.startswith("|") and (new or rows):
            rows.append(line)
            continue
        rest += _table(rows)
        rows = []
        if new and line.strip():
            literal = line.startswith("    ") and not SECTION.match(head)
            rest += ["::", ""] if literal else []
        if line[:1].strip():
            head = line
        rest.append("    " + line if literal and line.strip() else _literally(line))
    return rest + _table(rows)


def _table(rows):
    """The lines of a table in Markdown, its second one a rule, as reStructuredText."""
    if not rows:
        return []
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows[:1] + rows[2:]:
        first, *more = (_literally(cell.strip()) for cell in row.strip().strip("|").split("|"))
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in more)]
    return lines


def _literally(text):
    """Text of which nothing is taken for markup but code between backticks."""
    parts = re.split(r"(``?[^`]*``?)", text)
    parts[::2] = [re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    for n in range(2, len(parts), 2):
        if parts[n][:1].isalnum():  # `Row`s: without a mark the code would go on
            parts[n] = "\\ " + parts[n]
    return "".join(parts)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the pages go")
    parser.add_argument("--lang", default=language.ENGLISH, help="the pages that are in it")
    options = parser.parse_args(argv)
    os.environ[language.VARIABLE] = chosen = options.lang
    folder = Path(options.folder)
    pages = write(folder) if chosen == language.ENGLISH else write_in(chosen, folder)
    print(f"{len(pages)} pages in {folder}")


if __name__ == "__main__":
    sys.exit(run(main, "site"))
