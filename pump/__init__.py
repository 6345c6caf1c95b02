"""An append-only binlog served over gRPC. FORMAT.md is its disk format."""
