"""A pump's topic in Kafka, which a pump writes and a drainer reads: settings, messages, a writer and a reader."""
