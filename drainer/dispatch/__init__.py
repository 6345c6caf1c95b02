"""Converts changes into events, and chooses the topic and partition of each event. Pure."""
