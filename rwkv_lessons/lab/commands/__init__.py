"""The `lessons` command: its words, and how a notebook is read, run and derived."""
