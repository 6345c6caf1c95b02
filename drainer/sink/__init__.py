"""Destinations: where segments of rows and DDL end up, each exactly once."""
