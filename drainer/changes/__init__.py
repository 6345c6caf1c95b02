"""Decode rows to Arrow columns, and compute from these the last state of each key."""
