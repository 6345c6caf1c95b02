"""Many logs in, one ordered stream out, applied in parallel."""
