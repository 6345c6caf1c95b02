"""A directory of TiDB-Binlog's files or of Parquet files (docs/files.md), or of lines of JSON (docs/jsonl.md)."""
