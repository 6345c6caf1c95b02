"""TiCDC's topics in place of pumps: each partition is followed and pulled as a pump is, its rows as TiDB's binlogs."""
