"""Rows and DDLs of files into a server, for reparo."""
