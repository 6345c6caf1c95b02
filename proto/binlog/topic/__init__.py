"""A pump's topic in Kafka, which a pump writes and a drainer reads: messages, a writer and a reader."""
