"""What one lesson needs, or a few that follow each other: their evidence and their pictures."""
