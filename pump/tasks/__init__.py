"""What a pump does from time to time: garbage collection, fake binlogs, old prewrites, its score."""
