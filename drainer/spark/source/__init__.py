"""The data source "binlog": plain Spark's readers, and the drainer's own, which the driver plans."""
