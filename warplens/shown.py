"""What every trace can do: be written as a page, and be shown by a notebook.

The page is made of traces, so it is imported only when one is asked for it.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiled.assembly import Assembly


class Shown:
    """Of a trace: `write_html`, and its short form in a notebook."""

    def html(self, code: "Assembly | str | None" = None) -> str:
        """The page as text; see `write_html`."""
        return _page().page(self, code)

    def write_html(self, path: "str | Path", code: "Assembly | str | None" = None) -> Path:
        """Writes one HTML file that needs nothing else: no network, no other file.

        Source with the counts of each line; races and faults; a warp's requests (in Triton and
        Gluon a program's requests or steps), one at a time, with the sectors and banks that serve
        them; memory maps; of Gluon, a timeline. Long launches are sampled, and the page says so.

        Args:
            path: of the file.
            code: what `machine_code` returned, to stand beside the source; or a sentence that says
                why there is none.

        Returns:
            The path.

        Raises:
            OSError: the file cannot be written.
        """
        path = Path(path)
        path.write_text(self.html(code), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return _page().compact(self)

    def __repr__(self) -> str:
        return str(self).splitlines()[0]


def _page():
    return import_module(".page.write", __package__)
