"""DDL on a server of the MySQL family: the statements, running them exactly once, and the recycle bin."""
