"""The typed change stream: data source "binlog" with the option `table`."""
