"""Batches: planning them, and applying them in the driver or in slots on executors."""
