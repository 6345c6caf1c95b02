"""`arbiter`: applies the topic of a TiDB-Binlog drainer, of ours or the original's, to a server (docs/arbiter.md)."""
