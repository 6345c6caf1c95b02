"""A gRPC service of this process from an object whose methods have the names of the service's."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message_factory import GetMessageClass


def add_service(server: Any, file: FileDescriptor, service: str, servicer: object) -> None:
    """Add a service to a server, blocking or not. A method that `servicer` does not have is UNIMPLEMENTED."""
    found, handlers = file.services_by_name[service], {}
    for method in found.methods:
        sides = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
        if hasattr(servicer, method.name):
            handlers[method.name] = getattr(grpc, f"{'_'.join(sides)}_rpc_method_handler")(
                getattr(servicer, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(found.full_name, handlers),))
