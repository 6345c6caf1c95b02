"""TiCDC's Open Protocol, document version 1: rows of JSON, many of them in one message."""
