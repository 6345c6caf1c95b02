"""Which events become of changes, and which topic and partition each of them goes to. Pure."""
