"""The pumps as the drainer sees them: which count, how far they are, and how a range is pulled."""
