"""A pump among others: its record and id, the election that allocates timestamps, joining and leaving."""
