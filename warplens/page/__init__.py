"""A trace as HTML, in one file: `trace(…).write_html(path)`, and what a notebook shows of it."""
