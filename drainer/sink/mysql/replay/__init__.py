"""Rows and DDLs of files and of messages into a server, for reparo, kafka-consumer and arbiter."""
