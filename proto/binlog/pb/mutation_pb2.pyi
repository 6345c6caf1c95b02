from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Table(_message.Message):
    __slots__ = ("table_id", "inserted", "updated", "deleted", "sequence")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    inserted: _containers.RepeatedScalarFieldContainer[bytes]
    updated: _containers.RepeatedScalarFieldContainer[bytes]
    deleted: _containers.RepeatedScalarFieldContainer[bytes]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table_id: _Optional[int] = ..., inserted: _Optional[_Iterable[bytes]] = ..., updated: _Optional[_Iterable[bytes]] = ..., deleted: _Optional[_Iterable[bytes]] = ..., sequence: _Optional[_Iterable[int]] = ...) -> None: ...

class Prewrite(_message.Message):
    __slots__ = ("schema_version", "tables")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    def __init__(self, schema_version: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ...) -> None: ...
