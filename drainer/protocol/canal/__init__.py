"""Canal-JSON as TiCDC writes it: one row in each message, every value a string."""
