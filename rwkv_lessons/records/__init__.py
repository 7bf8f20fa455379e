"""What was measured, on which GPU, of which code. Imported by lab and bench; imports neither."""
