"""TiDB-Binlog's file output: one record for each transaction and each DDL, in commit order. Read by reparo."""
