"""What commands that read Kafka share: where it is, and the records of some topics in order."""
