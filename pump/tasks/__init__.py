"""What a pump does from time to time: garbage collection, old prewrites, its score."""
