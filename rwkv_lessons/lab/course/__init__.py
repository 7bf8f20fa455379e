"""The learner's words: check, predict, exercises, progress, the `lessons` command."""
