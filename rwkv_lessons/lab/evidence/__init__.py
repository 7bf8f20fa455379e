"""What a check gathers, one file per family of problems."""
