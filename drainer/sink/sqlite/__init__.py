"""One SQLite file, written by the driver: rows, DDL and position share every transaction."""
