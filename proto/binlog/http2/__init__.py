"""The server side of HTTP/2 (RFC 9113) without I/O: bytes in, events out; calls in, bytes out.

`Connection` is the interface. It uses no socket, has no clock of its own, and knows nothing of gRPC. Whatever a peer
sends, memory and work stay within `Limits`. The worst result is a `Failed` event, after which the connection is dead.

A connection owns its parts. `streams` and `limits` (the budget) hold its state. Received bytes go through `receiving`.
"""
