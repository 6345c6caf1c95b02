"""Ranges of a table at a timestamp: divided, read upstream, and loaded. docs/ranges.md."""
