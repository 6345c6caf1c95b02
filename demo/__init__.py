"""The small shop of `make demo`: the whole chain on one machine, checked row by row."""
