from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteBatchReq(_message.Message):
    __slots__ = ("cluster_id", "batch_id", "payloads")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    batch_id: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_id: _Optional[int] = ..., batch_id: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WriteError(_message.Message):
    __slots__ = ("index", "code", "message", "kind")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    index: int
    code: int
    message: str
    kind: str
    def __init__(self, index: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class WriteBatchResp(_message.Message):
    __slots__ = ("batch_id", "errors")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    errors: _containers.RepeatedCompositeFieldContainer[WriteError]
    def __init__(self, batch_id: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[WriteError, _Mapping]]] = ...) -> None: ...

class PullRangeReq(_message.Message):
    __slots__ = ("cluster_id", "after_ts", "until_ts", "message_bytes_max", "part_bytes_max")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_TS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    after_ts: int
    until_ts: int
    message_bytes_max: int
    part_bytes_max: int
    def __init__(self, cluster_id: _Optional[int] = ..., after_ts: _Optional[int] = ..., until_ts: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., part_bytes_max: _Optional[int] = ...) -> None: ...

class PullRangeResp(_message.Message):
    __slots__ = ("payloads", "last_ts", "end", "whole_bytes", "part_offset")
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    LAST_TS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_OFFSET_FIELD_NUMBER: _ClassVar[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    last_ts: int
    end: PullEnd
    whole_bytes: int
    part_offset: int
    def __init__(self, payloads: _Optional[_Iterable[bytes]] = ..., last_ts: _Optional[int] = ..., end: _Optional[_Union[PullEnd, _Mapping]] = ..., whole_bytes: _Optional[int] = ..., part_offset: _Optional[int] = ...) -> None: ...

class PullEnd(_message.Message):
    __slots__ = ("count", "bytes")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    count: int
    bytes: int
    def __init__(self, count: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CountReq(_message.Message):
    __slots__ = ("cluster_id", "after_ts", "until_ts")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_TS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    after_ts: int
    until_ts: int
    def __init__(self, cluster_id: _Optional[int] = ..., after_ts: _Optional[int] = ..., until_ts: _Optional[int] = ...) -> None: ...

class CountResp(_message.Message):
    __slots__ = ("count", "bytes", "bytes_exact")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_EXACT_FIELD_NUMBER: _ClassVar[int]
    count: int
    bytes: int
    bytes_exact: bool
    def __init__(self, count: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_exact: _Optional[bool] = ...) -> None: ...

class WatermarkReq(_message.Message):
    __slots__ = ("cluster_id", "after_ts", "batch_bytes_max", "batch_count_max", "stop_at_schema", "schema_version", "large_bytes_min")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_TS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LARGE_BYTES_MIN_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    after_ts: int
    batch_bytes_max: int
    batch_count_max: int
    stop_at_schema: bool
    schema_version: int
    large_bytes_min: int
    def __init__(self, cluster_id: _Optional[int] = ..., after_ts: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., batch_count_max: _Optional[int] = ..., stop_at_schema: _Optional[bool] = ..., schema_version: _Optional[int] = ..., large_bytes_min: _Optional[int] = ...) -> None: ...

class WatermarkResp(_message.Message):
    __slots__ = ("resolved_ts", "batch_end_ts", "batch_bytes", "batch_count", "stop", "stop_ts", "stop_schema_version", "split_ts", "state", "purged_ts", "last_ts", "split_count", "split_bytes", "bytes_exact", "stop_bytes", "oldest_pending")
    class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESOLVED: _ClassVar[WatermarkResp.Stop]
        LIMIT: _ClassVar[WatermarkResp.Stop]
        DDL: _ClassVar[WatermarkResp.Stop]
        SCHEMA: _ClassVar[WatermarkResp.Stop]
        LARGE: _ClassVar[WatermarkResp.Stop]
    RESOLVED: WatermarkResp.Stop
    LIMIT: WatermarkResp.Stop
    DDL: WatermarkResp.Stop
    SCHEMA: WatermarkResp.Stop
    LARGE: WatermarkResp.Stop
    RESOLVED_TS_FIELD_NUMBER: _ClassVar[int]
    BATCH_END_TS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TS_FIELD_NUMBER: _ClassVar[int]
    STOP_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPLIT_TS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PURGED_TS_FIELD_NUMBER: _ClassVar[int]
    LAST_TS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_EXACT_FIELD_NUMBER: _ClassVar[int]
    STOP_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_FIELD_NUMBER: _ClassVar[int]
    resolved_ts: int
    batch_end_ts: int
    batch_bytes: int
    batch_count: int
    stop: WatermarkResp.Stop
    stop_ts: int
    stop_schema_version: int
    split_ts: _containers.RepeatedScalarFieldContainer[int]
    state: str
    purged_ts: int
    last_ts: int
    split_count: _containers.RepeatedScalarFieldContainer[int]
    split_bytes: _containers.RepeatedScalarFieldContainer[int]
    bytes_exact: bool
    stop_bytes: int
    oldest_pending: PendingPrewrite
    def __init__(self, resolved_ts: _Optional[int] = ..., batch_end_ts: _Optional[int] = ..., batch_bytes: _Optional[int] = ..., batch_count: _Optional[int] = ..., stop: _Optional[_Union[WatermarkResp.Stop, str]] = ..., stop_ts: _Optional[int] = ..., stop_schema_version: _Optional[int] = ..., split_ts: _Optional[_Iterable[int]] = ..., state: _Optional[str] = ..., purged_ts: _Optional[int] = ..., last_ts: _Optional[int] = ..., split_count: _Optional[_Iterable[int]] = ..., split_bytes: _Optional[_Iterable[int]] = ..., bytes_exact: _Optional[bool] = ..., stop_bytes: _Optional[int] = ..., oldest_pending: _Optional[_Union[PendingPrewrite, _Mapping]] = ...) -> None: ...

class InspectReq(_message.Message):
    __slots__ = ("cluster_id", "pending_max")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PENDING_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    pending_max: int
    def __init__(self, cluster_id: _Optional[int] = ..., pending_max: _Optional[int] = ...) -> None: ...

class PendingPrewrite(_message.Message):
    __slots__ = ("start_ts", "age_ms", "ddl_job_id", "bytes", "prewrite_key", "writer")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DDL_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PREWRITE_KEY_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    age_ms: int
    ddl_job_id: int
    bytes: int
    prewrite_key: bytes
    writer: bytes
    def __init__(self, start_ts: _Optional[int] = ..., age_ms: _Optional[int] = ..., ddl_job_id: _Optional[int] = ..., bytes: _Optional[int] = ..., prewrite_key: _Optional[bytes] = ..., writer: _Optional[bytes] = ...) -> None: ...

class InspectResp(_message.Message):
    __slots__ = ("node_id", "state", "resolved_ts", "max_commit_ts", "purged_ts", "pending_count", "pending", "late_commit_count", "late_commit_ts", "version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_TS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    PURGED_TS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LATE_COMMIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LATE_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    resolved_ts: int
    max_commit_ts: int
    purged_ts: int
    pending_count: int
    pending: _containers.RepeatedCompositeFieldContainer[PendingPrewrite]
    late_commit_count: int
    late_commit_ts: _containers.RepeatedScalarFieldContainer[int]
    version: str
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., resolved_ts: _Optional[int] = ..., max_commit_ts: _Optional[int] = ..., purged_ts: _Optional[int] = ..., pending_count: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[PendingPrewrite, _Mapping]]] = ..., late_commit_count: _Optional[int] = ..., late_commit_ts: _Optional[_Iterable[int]] = ..., version: _Optional[str] = ...) -> None: ...

class SettleReq(_message.Message):
    __slots__ = ("cluster_id", "start_ts", "commit_ts")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: int
    commit_ts: int
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class SettleResp(_message.Message):
    __slots__ = ("commit_ts",)
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    def __init__(self, commit_ts: _Optional[int] = ...) -> None: ...

class PassOverReq(_message.Message):
    __slots__ = ("cluster_id", "commit_ts", "dry_run")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    commit_ts: int
    dry_run: bool
    def __init__(self, cluster_id: _Optional[int] = ..., commit_ts: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PassOverResp(_message.Message):
    __slots__ = ("start_ts", "ddl_job_id", "why")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    DDL_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    ddl_job_id: int
    why: str
    def __init__(self, start_ts: _Optional[int] = ..., ddl_job_id: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class OutcomeReq(_message.Message):
    __slots__ = ("cluster_id", "start_ts")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[_Iterable[int]] = ...) -> None: ...

class OutcomeResp(_message.Message):
    __slots__ = ("commit_ts",)
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    commit_ts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, commit_ts: _Optional[_Iterable[int]] = ...) -> None: ...
