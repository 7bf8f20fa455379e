"""How Sphinx makes the site: `make site`. Its pages come from `rwkv_lessons.report.site`."""

import html
import re

from docutils import nodes
from sphinx.search.en import SearchEnglish

from rwkv_lessons.lab.course import translation
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report.address import address, site_address
from rwkv_lessons.report.formulas import mathml
from rwkv_lessons.report.site import as_rest
from rwkv_lessons.report.translated import switch

project = html_title = "RWKV Lessons"
# `sphinx -t zh` makes the pages of a translation, which lie in a folder of the English site.
spoken = next((x for x in translation.languages() if tags.has(x)), "en")  # noqa: F821
language = {"zh": "zh_CN"}.get(spoken, spoken)
if spoken != "en":
    myst_heading_slug_func = "rwkv_lessons.report.translated.slug"
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

exclude_patterns = ["_static"]  # notebooks to download

html_theme = "furo"
html_favicon = "static/icon.svg"
html_baseurl = site_address(ROOT)
if html_baseurl and spoken != "en":
    html_baseurl += f"{spoken}/"
if address(ROOT):  # a link to each page's source
    html_theme_options = {"source_repository": address(ROOT), "source_branch": "main"}
pygments_dark_style = "github-dark"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_js_files = ["motion.js"]
html_math_renderer = "mathml"
html_copy_source = html_show_copyright = html_show_sphinx = False


class SearchChinese(SearchEnglish):
    """Sphinx's own finds no word without jieba, and its script does not start.

    Every run of Chinese characters is a term, since a search looks inside of long ones, and so are
    two neighbours; other words are English.
    """

    lang = "zh"

    def split(self, text):
        runs = re.findall("[\u4e00-\u9fff]{2,}", text)
        pairs = [run[n : n + 2] for run in runs for n in range(len(run) - 1)]
        return [*runs, *pairs, *re.findall(r"[A-Za-z0-9_]+", text)]


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


def with_static_files(app, config):
    """The pages bring the card along."""
    config.html_static_path.append(f"{app.srcdir}/_static")


def described(app, pagename, templatename, context, doctree):
    """What search engines and shared links show, and tables and code that scroll by keyboard."""
    title = html.escape(re.sub("<.*?>", "", context.get("title") or html_title))
    text = html.escape(description(doctree))
    tags = [f'<meta property="og:title" content="{title}">']
    tags += [f'<meta property="og:site_name" content="{project}">']
    tags += ['<meta property="og:type" content="website">']
    if text:
        tags += [f'<meta name="description" content="{text}">']
        tags += [f'<meta property="og:description" content="{text}">']
    if html_baseurl:  # a card needs a whole address
        tags += [f'<meta property="og:image" content="{html_baseurl}_static/card.png">']
        tags += [f'<meta property="og:url" content="{html_baseurl}{pagename}.html">']
        tags += ['<meta name="twitter:card" content="summary_large_image">']
    others = switch(pagename, spoken, ROOT)
    tags += [f'<link rel="alternate" hreflang="{tag}" href="{x}">' for tag, _, x in others]
    context["metatags"] = context.get("metatags", "") + "".join(f"\n    {tag}" for tag in tags)
    table = "Table" if spoken == "en" else translation.texts(spoken).translate("Table")
    if body := context.get("body"):
        body = re.sub(r"<pre>", '<pre tabindex="0">', body)
        links = (f'<a href="{x}" hreflang="{t}" lang="{t}">{name}</a>' for t, name, x in others)
        body = f'<p class="language">{" · ".join(links)}</p>\n{body}' if others else body
        context["body"] = body.replace(
            'class="table-wrapper',
            f'tabindex="0" role="region" aria-label="{table}" class="table-wrapper',
        )


def in_the_language(app):
    """The theme's words, of which Sphinx has no translation."""
    if spoken == "en" or not hasattr(app.builder, "templates"):
        return
    words, known = translation.texts(spoken).messages, app.translator
    app.builder.templates.environment.install_gettext_callables(
        lambda text: words.get(text) or known.gettext(text), known.ngettext
    )


def description(doctree, most=155):
    """The first sentences of a page."""
    for node in doctree.findall(nodes.paragraph) if doctree else ():
        text = re.sub(r"\s+", " ", node.astext()).strip()
        if len(text) > (40 if spoken == "en" else 20) and not text.startswith(
            "Here the lesson stands"
        ):
            short = text[:most].rsplit(". ", 1)[0] if len(text) > most else text
            return short if 20 <= len(short) <= most else text[:most].rsplit(" ", 1)[0] + " …"
    return ""


def setup(app):
    app.connect("config-inited", with_static_files)
    app.connect("builder-inited", in_the_language)
    app.connect("html-page-context", described)
    app.add_search_language(SearchChinese)
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon's
