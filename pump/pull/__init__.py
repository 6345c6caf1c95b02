"""Reads complete binlogs in commit order: plans, ranges, and binlogs in parts."""
