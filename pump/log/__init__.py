"""The value log: records in files, and how they are read and recovered. See FORMAT.md."""
