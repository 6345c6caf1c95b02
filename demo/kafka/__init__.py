"""`make demo-kafka`: the shop's changes in Kafka, in two protocols, and read back."""
