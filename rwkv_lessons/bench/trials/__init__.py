"""What was tried beside the library, and how to try it again."""
