"""Simple: rows refer to a table schema that DDL and bootstrap messages carry."""
