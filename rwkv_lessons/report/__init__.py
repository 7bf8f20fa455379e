"""Writes the tables and figures of README.md and docs/ from the records."""
