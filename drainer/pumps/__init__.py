"""The pumps as the drainer sees them: which of them count, their watermarks, and how a range is pulled."""
