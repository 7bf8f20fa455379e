"""The lessons' figures, one file per family of lessons."""
