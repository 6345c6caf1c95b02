"""Which topic and partition a change belongs to, and what is one event there. Pure."""
