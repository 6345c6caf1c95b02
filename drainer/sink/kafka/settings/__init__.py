"""The settings of a Kafka destination: from a file, from a sink URI, under TiCDC's and the original's names."""
