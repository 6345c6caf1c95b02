"""Topics and their partitions: created, counted, checked, and changed while the drainer runs."""
