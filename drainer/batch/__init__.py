"""A batch as values: its binlogs, read once, and the rows that a destination gets of it. Pure."""
