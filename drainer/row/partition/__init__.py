"""Which partition of a table a row lies in, and rows of partitions that were moved or dropped."""
