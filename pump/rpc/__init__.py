"""The gRPC services: bytes in, bytes out."""
