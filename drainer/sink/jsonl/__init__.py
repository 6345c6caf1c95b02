"""A directory of files with one line for each change (docs/jsonl.md)."""
