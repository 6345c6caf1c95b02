"""DDL jobs (model.Job), read from and written to the JSON of TiDB's history or of a service with the embedded SDK.

Numbers unknown to this module (such as a newer TiDB's job type) are kept as members named `UNKNOWN_n`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .document import (
    OMIT,
    Document,
    Json,
    Order,
    Reader,
    dump_document,
    expect_document,
    in_order,
    parse_document,
    unknown_rest,
)
from .table import DBInfo, TableInfo
from .types import OpenEnum, SchemaState

__all__ = ["ActionType", "DBInfo", "Job", "JobState", "SchemaState", "TableInfo"]


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


_JOB_ORDER: Order = (
    ("id", 0),
    ("type", 0),
    ("schema_id", 0),
    ("table_id", 0),
    ("schema_name", ""),
    ("table_name", ""),
    ("state", 0),
    ("warning", None),
    ("err", None),
    ("err_count", 0),
    ("row_count", 0),
    ("raw_args", None),
    ("schema_state", 0),
    ("snapshot_ver", 0),
    ("real_start_ts", 0),
    ("start_ts", 0),
    ("dependency_id", 0),
    ("query", ""),
    ("binlog", None),
    ("version", 0),
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
class Job:
    """A DDL job. `schema_version` 0 means that the job failed. `query`: the statement as the user wrote it.

    `finished_ts` is later than the commit_ts of the job's binlog (X-05), so match them by id.
    """

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
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def took_effect(self) -> bool:
        """Whether the job is done or synced. A drainer applies only such jobs."""
        return self.state in (JobState.DONE, JobState.SYNCED)

    @property
    def error(self) -> Document | None:
        """{"class", "code", "message", "rfccode"} of a failed job, or None."""
        found = self.rest.get("err")
        return found if isinstance(found, dict) else None

    @classmethod
    def from_json(cls, source: Document | bytes | str) -> Job:
        """Read a job from a document or its text. Raises DecodeError with the name of an invalid field."""
        document = parse_document(source, "Job") if isinstance(source, bytes | str) else expect_document(source, "Job")
        read = Reader(document, "Job")
        read.what = f"Job {read.integer('id')}"
        history = read.child("binlog")
        past = Reader(history or {}, f"{read.what}.binlog")
        table, database = past.child("TableInfo"), past.child("DBInfo")
        tables = past.documents("MultipleTableInfos")
        known = cls(
            id=read.integer("id"),
            type=ActionType(read.integer("type")),
            state=JobState(read.integer("state")),
            schema_state=SchemaState(read.integer("schema_state")),
            schema_id=read.integer("schema_id"),
            table_id=read.integer("table_id"),
            schema_name=read.text("schema_name"),
            table_name=read.text("table_name"),
            query=read.text("query"),
            schema_version=past.integer("SchemaVersion"),
            finished_ts=past.integer("FinishedTS"),
            start_ts=read.integer("start_ts"),
            real_start_ts=read.integer("real_start_ts"),
            table_info=None if table is None else TableInfo.from_json(table, f"{past.what}.TableInfo"),
            db_info=None if database is None else DBInfo.from_json(database, f"{past.what}.DBInfo"),
            multiple_table_infos=tuple(TableInfo.from_json(t, f"{past.what}.MultipleTableInfos") for t in tables),
            version=read.integer("version"),
            has_history=history is not None,
        )
        rest = unknown_rest(_JOB_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "type": int(self.type),
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "schema_name": self.schema_name,
            "table_name": self.table_name,
            "state": int(self.state),
            "schema_state": int(self.schema_state),
            "real_start_ts": self.real_start_ts,
            "start_ts": self.start_ts,
            "query": self.query,
            "binlog": self._history(),
            "version": self.version,
        }

    def _history(self) -> Json:
        if not self.has_history:
            return None
        return {
            "SchemaVersion": self.schema_version,
            "DBInfo": None if self.db_info is None else self.db_info.to_json(),
            "TableInfo": None if self.table_info is None else self.table_info.to_json(),
            "FinishedTS": self.finished_ts,
            "MultipleTableInfos": [table.to_json() for table in self.multiple_table_infos] or None,
        }

    def to_json(self) -> dict[str, Json]:
        """Return the document with the keys of TiDB 8.1, in their order."""
        return in_order(_JOB_ORDER, self._typed(), self.rest)

    def dump(self) -> bytes:
        """Return `to_json` as the text that Go's encoding/json writes."""
        return dump_document(self.to_json())
