"""Debezium JSON as TiCDC writes it: a payload and, unless it is disabled, the payload's Kafka Connect schema."""
