"""A gRPC server over binlog.http2, on asyncio: unary, server-streaming and bidirectional methods.

Bytes in, bytes out: handlers parse what they need of a message. A message is collected in one buffer of its announced
length; whether there is room for it is asked when its length is known, before its bytes come.
"""
