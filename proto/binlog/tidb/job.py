"""DDL jobs (model.Job), read from and written to the JSON of TiDB's history or of a service with the embedded SDK.

Numbers unknown to this module (such as a newer TiDB's job type) are kept as members named `UNKNOWN_n`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .document import (
    OMIT,
    Document,
    Json,
    JsonObject,
    Layout,
    Reader,
    Typed,
    dump_document,
    number_of,
    object_of,
    objects_of,
)
from .table import DBInfo, TableInfo
from .types import OpenEnum, SchemaState


class ActionType(OpenEnum):
    """The kind of a job."""

    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET_AND_COLLATE = 22
    TRUNCATE_TABLE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET_AND_COLLATE = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    UPDATE_TIFLASH_REPLICA_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    MODIFY_TABLE_AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM_BASE = 40
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_TABLE_PARTITION = 42
    ADD_CHECK_CONSTRAINT = 43
    DROP_CHECK_CONSTRAINT = 44
    ALTER_CHECK_CONSTRAINT = 45
    ALTER_TABLE_ALTER_PARTITION = 46
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    ALTER_TABLE_ATTRIBUTES = 49
    ALTER_TABLE_PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_TABLE_PARTITION_PLACEMENT = 54
    MODIFY_SCHEMA_DEFAULT_PLACEMENT = 55
    ALTER_TABLE_PLACEMENT = 56
    ALTER_CACHE_TABLE = 57
    ALTER_TABLE_STATS_OPTIONS = 58
    ALTER_NO_CACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL_INFO = 65
    ALTER_TTL_REMOVE = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


class JobState(OpenEnum):
    """The state of a job. Jobs that are done or synced took effect."""

    NONE = 0
    RUNNING = 1
    ROLLINGBACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8
    PAUSED = 9
    PAUSING = 10


_HISTORY = Layout(
    Typed("SchemaVersion", Reader.integer, name="schema_version"),
    object_of("DBInfo", DBInfo.from_json, "db_info"),
    object_of("TableInfo", TableInfo.from_json, "table_info"),
    Typed("FinishedTS", Reader.integer, name="finished_ts"),
    objects_of("MultipleTableInfos", TableInfo.from_json, "multiple_table_infos"),
)
_JOB = Layout(  # of TiDB 8.1
    Typed("id", Reader.integer),
    number_of("type", ActionType),
    Typed("schema_id", Reader.integer),
    Typed("table_id", Reader.integer),
    Typed("schema_name", Reader.text),
    Typed("table_name", Reader.text),
    number_of("state", JobState),
    ("warning", None),
    ("err", None),
    ("err_count", 0),
    ("row_count", 0),
    ("raw_args", None),
    number_of("schema_state", SchemaState),
    ("snapshot_ver", 0),
    Typed("real_start_ts", Reader.integer),
    Typed("start_ts", Reader.integer),
    ("dependency_id", 0),
    Typed("query", Reader.text),
    Typed("binlog", Reader.child),
    Typed("version", Reader.integer),
    ("reorg_meta", None),
    ("multi_schema_info", None),
    ("priority", 0),
    ("seq_num", 0),
    ("charset", ""),
    ("collate", ""),
    ("involving_schema_info", OMIT),
    ("admin_operator", 0),
    ("trace_info", None),
    ("bdr_role", ""),
    ("cdc_write_source", 0),
    ("local_mode", False),
    ("sql_mode", 0),
)


@dataclass(frozen=True, slots=True)
class Job(JsonObject):
    """A DDL job. `schema_version` 0 means that the job failed. `query`: the statement as the user wrote it.

    `finished_ts` is later than the commit_ts of the job's binlog (X-05), so match them by id. `by_text`: the TableInfo
    lacks things that the text says. It is not part of TiDB's JSON; the code that makes the job sets it.
    """

    layout = _JOB
    id: int
    type: ActionType
    state: JobState = JobState.SYNCED
    schema_state: SchemaState = SchemaState.PUBLIC
    schema_id: int = 0
    table_id: int = 0
    schema_name: str = ""
    table_name: str = ""
    query: str = ""
    schema_version: int = 0
    finished_ts: int = 0
    start_ts: int = 0
    real_start_ts: int = 0
    table_info: TableInfo | None = None
    db_info: DBInfo | None = None
    multiple_table_infos: tuple[TableInfo, ...] = ()
    version: int = 1
    has_history: bool = True  # the document had a `binlog` object
    by_text: bool = False

    @property
    def took_effect(self) -> bool:
        """Whether the job is done or synced. A drainer applies only such jobs."""
        return self.state in (JobState.DONE, JobState.SYNCED)

    @property
    def error(self) -> Document | None:
        """{"class", "code", "message", "rfccode"} of a failed job, or None."""
        found = self.rest.get("err")
        return found if isinstance(found, dict) else None

    @property
    def binlog(self) -> Json:
        """The document of the history: the attributes that _HISTORY names."""
        return _HISTORY.write(self) if self.has_history else None

    @classmethod
    def from_json(cls, source: Document | bytes | str, what: str = "Job") -> Self:
        """Read a job from a document or its text. Raises DecodeError with the name of an invalid field."""
        read = Reader.of(source, what)
        read.what = f"{what} {read.integer('id')}"
        found = _JOB.read(read)
        history = found.pop("binlog")
        past = Reader(history or {}, f"{read.what}.binlog")
        return cls(**found, **_HISTORY.read(past), has_history=history is not None)

    def dump(self) -> bytes:
        """Return `to_json` as the text that Go's encoding/json writes."""
        return dump_document(self.to_json())
