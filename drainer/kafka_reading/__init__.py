"""Shared code of the commands that read Kafka: addresses, and the records of topics in order."""
