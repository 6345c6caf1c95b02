"""The drainer as a program: start and stop, the status page, its record in the registry."""
