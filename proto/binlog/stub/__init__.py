"""In-memory stand-ins for unit tests of pure code and for embedding."""
