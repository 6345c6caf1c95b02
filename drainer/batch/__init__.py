"""Values of a batch: its binlogs and the rows for the destination. Pure."""
