"""From binlog bytes to rows, one by one: what each column holds, keys, and what a destination makes of both."""
