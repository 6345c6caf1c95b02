"""Debezium JSON as TiCDC writes it: a payload, and unless switched off the Kafka Connect schema of it."""
