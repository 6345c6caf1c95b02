"""A pump's topic in Kafka, which a pump writes and a drainer reads: settings, messages, and the one door to Kafka."""
