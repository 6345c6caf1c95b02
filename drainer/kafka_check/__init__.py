"""`kafka-check`: reads what a drainer (or TiCDC) wrote to Kafka and proves the rules that consumers rely on."""
