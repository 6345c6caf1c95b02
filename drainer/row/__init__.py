"""From binlog bytes to the rows a destination writes: per-table programs, keys, and the general decoder behind them."""
