"""A gRPC server with binlog.http2, on asyncio: unary, server-streaming and bidirectional methods.

Messages are bytes: handlers parse the parts they need. A message is collected in one buffer of its announced length.
The server checks whether the memory budget allows a message when its length is known, before its bytes arrive.
"""
