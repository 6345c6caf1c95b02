"""DDL on a server of the MySQL family: what it is told, run exactly once, and the recycle bin."""
