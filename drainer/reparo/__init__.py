"""`reparo`: reads the drainer's pb files and prints them, or applies them to a database (docs/files.md)."""
