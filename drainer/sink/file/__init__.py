"""A directory of TiDB-Binlog's files, or of Parquet files (docs/files.md)."""
