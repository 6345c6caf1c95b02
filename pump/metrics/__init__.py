"""Metrics of a pump, with the original's names where it has them."""
