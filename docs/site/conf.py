"""How Sphinx makes the site: `make site`. Its pages come from `rwkv_lessons.report.site`."""

from docutils import nodes

from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report.address import address
from rwkv_lessons.report.formulas import mathml
from rwkv_lessons.report.site import as_rest

project = html_title = "RWKV Lessons"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "literal"  # docstrings have code between single backticks
smartquotes = False  # commands in the text keep their dashes and quotes

nb_execution_mode = "off"
nb_render_markdown_format = "myst"  # of outputs: figures, with their width
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Limits", "params_style"), "Source"]

html_theme = "furo"
if address(ROOT):  # a link to each page's source
    html_theme_options = {"source_repository": address(ROOT), "source_branch": "main"}
pygments_dark_style = "github-dark"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_copyright = html_show_sphinx = False


def inline_formula(writer, node):
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer, node):
    """One that is wider than a phone scrolls by itself, and can be reached with the keyboard."""
    text = mathml(node.astext(), "block")
    writer.body.append(f'<div class="formula" tabindex="0">{text}</div>\n')
    raise nodes.SkipNode


def rewrite(app, what, name, object, options, lines):
    lines[:] = as_rest(lines)


def setup(app):
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon's
