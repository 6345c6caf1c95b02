"""The order between rows: folding per key, slots, and groups of transactions that must not overtake each other."""
