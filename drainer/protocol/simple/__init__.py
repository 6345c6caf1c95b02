"""Simple: rows refer to a table schema, which DDL and bootstrap messages contain."""
