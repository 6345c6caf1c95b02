"""Kafka as a destination: changes as messages, exactly once by transactions."""
