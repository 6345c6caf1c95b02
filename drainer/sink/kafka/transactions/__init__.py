"""Kafka's transactions and the control topic: claims, positions, and transactions without an outcome."""
