"""Computes the partition of a row, and handles rows of partitions that were moved or dropped."""
