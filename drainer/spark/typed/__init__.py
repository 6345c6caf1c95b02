"""Changes of named tables with typed columns: the data source "binlog" with the option `table`."""
