from binlog.pb import pdpb_pb2 as _pdpb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_ACTION: _ClassVar[Action]
    TTL_EXPIRE_ROLLBACK: _ClassVar[Action]
    LOCK_NOT_EXIST_ROLLBACK: _ClassVar[Action]
    MIN_COMMIT_TS_PUSHED: _ClassVar[Action]
    TTL_EXPIRE_PESSIMISTIC_ROLLBACK: _ClassVar[Action]
    LOCK_NOT_EXIST_DO_NOTHING: _ClassVar[Action]

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT: _ClassVar[Op]
    DEL: _ClassVar[Op]
    LOCK: _ClassVar[Op]
    ROLLBACK: _ClassVar[Op]
NO_ACTION: Action
TTL_EXPIRE_ROLLBACK: Action
LOCK_NOT_EXIST_ROLLBACK: Action
MIN_COMMIT_TS_PUSHED: Action
TTL_EXPIRE_PESSIMISTIC_ROLLBACK: Action
LOCK_NOT_EXIST_DO_NOTHING: Action
PUT: Op
DEL: Op
LOCK: Op
ROLLBACK: Op

class Context(_message.Message):
    __slots__ = ("region_id", "region_epoch", "peer")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    region_epoch: _pdpb_pb2.RegionEpoch
    peer: _pdpb_pb2.Peer
    def __init__(self, region_id: _Optional[int] = ..., region_epoch: _Optional[_Union[_pdpb_pb2.RegionEpoch, _Mapping]] = ..., peer: _Optional[_Union[_pdpb_pb2.Peer, _Mapping]] = ...) -> None: ...

class RegionError(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class LockInfo(_message.Message):
    __slots__ = ("primary_lock", "lock_version")
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    LOCK_VERSION_FIELD_NUMBER: _ClassVar[int]
    primary_lock: bytes
    lock_version: int
    def __init__(self, primary_lock: _Optional[bytes] = ..., lock_version: _Optional[int] = ...) -> None: ...

class TxnNotFound(_message.Message):
    __slots__ = ("start_ts",)
    START_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    def __init__(self, start_ts: _Optional[int] = ...) -> None: ...

class KeyError(_message.Message):
    __slots__ = ("locked", "retryable", "abort", "txn_not_found")
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    TXN_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    locked: LockInfo
    retryable: str
    abort: str
    txn_not_found: TxnNotFound
    def __init__(self, locked: _Optional[_Union[LockInfo, _Mapping]] = ..., retryable: _Optional[str] = ..., abort: _Optional[str] = ..., txn_not_found: _Optional[_Union[TxnNotFound, _Mapping]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("context", "start_key", "limit", "version", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    limit: int
    version: int
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., version: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class KvPair(_message.Message):
    __slots__ = ("error", "key", "value")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    error: KeyError
    key: bytes
    value: bytes
    def __init__(self, error: _Optional[_Union[KeyError, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("region_error", "pairs", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class CheckTxnStatusRequest(_message.Message):
    __slots__ = ("context", "primary_key", "lock_ts", "caller_start_ts", "current_ts", "rollback_if_not_exist")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    LOCK_TS_FIELD_NUMBER: _ClassVar[int]
    CALLER_START_TS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_IF_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    context: Context
    primary_key: bytes
    lock_ts: int
    caller_start_ts: int
    current_ts: int
    rollback_if_not_exist: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., primary_key: _Optional[bytes] = ..., lock_ts: _Optional[int] = ..., caller_start_ts: _Optional[int] = ..., current_ts: _Optional[int] = ..., rollback_if_not_exist: _Optional[bool] = ...) -> None: ...

class CheckTxnStatusResponse(_message.Message):
    __slots__ = ("region_error", "error", "lock_ttl", "commit_version", "action")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    lock_ttl: int
    commit_version: int
    action: Action
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., lock_ttl: _Optional[int] = ..., commit_version: _Optional[int] = ..., action: _Optional[_Union[Action, str]] = ...) -> None: ...

class MvccLock(_message.Message):
    __slots__ = ("type", "start_ts")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    type: Op
    start_ts: int
    def __init__(self, type: _Optional[_Union[Op, str]] = ..., start_ts: _Optional[int] = ...) -> None: ...

class MvccWrite(_message.Message):
    __slots__ = ("type", "start_ts", "commit_ts")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    type: Op
    start_ts: int
    commit_ts: int
    def __init__(self, type: _Optional[_Union[Op, str]] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class MvccInfo(_message.Message):
    __slots__ = ("lock", "writes")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    lock: MvccLock
    writes: _containers.RepeatedCompositeFieldContainer[MvccWrite]
    def __init__(self, lock: _Optional[_Union[MvccLock, _Mapping]] = ..., writes: _Optional[_Iterable[_Union[MvccWrite, _Mapping]]] = ...) -> None: ...

class MvccGetByKeyRequest(_message.Message):
    __slots__ = ("context", "key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ...) -> None: ...

class MvccGetByKeyResponse(_message.Message):
    __slots__ = ("region_error", "error", "info")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: str
    info: MvccInfo
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[str] = ..., info: _Optional[_Union[MvccInfo, _Mapping]] = ...) -> None: ...
