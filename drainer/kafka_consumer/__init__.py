"""`kafka-consumer`: applies what a drainer (or TiCDC) wrote to Kafka to a database, exactly once."""
