"""Canal-JSON as TiCDC writes it: one row a message, every value a string."""
