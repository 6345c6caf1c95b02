"""Rows into a server of the MySQL family."""
