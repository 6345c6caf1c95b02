"""Destination `db-type = "delta"`: for each table a history and a mirror, as tables of Delta Lake."""
