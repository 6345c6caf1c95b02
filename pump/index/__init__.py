"""What LevelDB holds: where each binlog is in the value log, and which binlogs are complete. See FORMAT.md."""
