"""The server's side of HTTP/2 (RFC 9113) without any I/O: bytes in, events out; calls in, bytes out.

`Connection` is the whole of it. It knows no socket, no clock of its own and no gRPC. Whatever a peer sends, memory and
work stay within `Limits`, and the worst that comes out is a `Failed` event after which the connection is dead.
"""
