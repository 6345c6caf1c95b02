"""Rows as Arrow columns: where they lie in binlogs, their values, the last state of each key, who holds a value."""
