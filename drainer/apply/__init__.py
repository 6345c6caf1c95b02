"""What is done with a batch: planned, applied by the driver in order, or by executors in slots."""
