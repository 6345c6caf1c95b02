"""The secondary binlog, which TiDB-Binlog's drainer writes to Kafka: one message for each transaction and each DDL."""
