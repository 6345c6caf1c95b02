"""The data source "binlog": what the pumps of one cluster serve, in commit_ts order per task.

    drainer.spark.register(spark)
    spark.readStream.format("binlog").option("pd-urls", "http://127.0.0.1:2379").load()

docs/api-source.md lists its options and columns, docs/changes.md and docs/operations.md say what they mean.

Without `table` a binlog of more than 64 MiB fails the query: a row is one value, which Spark copies several times. With
`packed`, as the drainer reads it, a row is one message of a pull, unread: `pump`, `seq`, and `blob`, a serialized
binlog.ext.PullRangeResp; of a binlog above 4 MiB a part, and the next rows hold the rest.

The offset of a stream is `{"commit_ts": N}`: everything at or below N is final and has been read. It is the watermark
of all pumps that count (correctness rule 8), cut to `batch-bytes-max`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, ParamSpec, Self, TypeVar

from binlog.cluster import tso
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.command_line import closest
from binlog.runtime.fields import Names, Section, Tso
from binlog.runtime.security import Security
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from binlog.cluster.etcd import Etcd
    from pyarrow import RecordBatch

    from drainer.schema.history.base import JobSource


BATCH_BYTES_MAX = 32 << 20
# Valid with `table` only.
_TYPED = ("history-file", "history-url", "schema-changes", "zero-dates", "rules-file", "shape")


def _tables(text: object) -> object:
    """Parse `shop.orders, shop.items`; a name that contains a dot or comma is written in backquotes."""
    if not isinstance(text, str):
        return text
    tables: list[tuple[str, str]] = []
    at = 0
    while True:
        match = _TABLE.match(text, at)
        if match is None:
            raise ValueError(f"it must be database.table, or several with commas between them, not {text!r}")
        names = [(match[n] or match[n + 1].replace("``", "`")).lower() for n in (1, 3)]
        if (names[0], names[1]) not in tables:
            tables.append((names[0], names[1]))
        at = match.end()
        if match[5] != ",":
            return tuple(tables)


_NAME = r"(?:([^`.,\s]+)|`((?:[^`]|``)+)`)"
_TABLE = re.compile(rf"\s*{_NAME}\.{_NAME}\s*(,|$)")


_OrZero = BeforeValidator(lambda value: value or 0)
_Lower = BeforeValidator(str.lower)
_Truth = BeforeValidator(lambda value: {"true": True, "false": False}.get(str(value).lower(), value))


class SourceOptions(Section):
    """Picklable. `planner`: the address and key of the drainer's own scheduler (planner.py), which then decides
    every batch; `error_secret`: that of its ErrorSeal; `blob_folder`: see slot_blob.folder_of. All are empty if the
    source is used without the drainer."""

    pd_urls: Names = ()
    cluster_id: Annotated[int, _OrZero] = Field(0, ge=0)
    pd_addr: str = ""
    tso_source: str = "auto"
    source: str = Field("", repr=False)
    source_topics: Names = ()
    start_ts: Annotated[Tso, _OrZero] = Field(0, ge=0)
    end_ts: Annotated[Tso, _OrZero] = Field(0, ge=0)
    batch_bytes_max: Annotated[int, BeforeValidator(lambda value: value or BATCH_BYTES_MAX)] = Field(0, ge=0)
    packed: Annotated[bool, _Truth] = Field(False, strict=True)
    tables: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_tables)] = Field((), alias="table")
    history_file: str = ""
    history_url: str = ""
    schema_changes: Annotated[Literal["fail", "collect"], _Lower] = "fail"
    zero_dates: Annotated[Literal["null", "fail"], _Lower] = "null"
    rules_file: str = ""
    shape: Annotated[Literal["images", "changelog"], _Lower] = "images"
    planner: str = ""
    planner_key: str = Field("", repr=False)
    error_secret: str = Field("", repr=False)
    blob_folder: str = ""
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options. Raises ConfigError naming the option. Spark may pass option names in any case."""
        given = {name.lower(): value.strip() for name, value in options.items()}
        try:
            return cls.model_validate(given, by_alias=True, by_name=False)
        except ValidationError as error:
            texts = map(_refusal, error.errors(include_url=False))
            raise ConfigError(f"data source binlog: {'; '.join(texts)}") from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.pd_urls or self.planner or self.source):
            raise ValueError("the option pd-urls is required, or source")
        if self.source and not (self.history_file or self.history_url):
            raise ValueError("the option source needs history-url or history-file")
        if 0 < self.end_ts < self.start_ts:
            raise ValueError(
                f"end-ts {self.end_ts} ({tso.format_utc(self.end_ts)}) is before start-ts {self.start_ts} "
                f"({tso.format_utc(self.start_ts)})"
            )
        given = {name.replace("_", "-") for name in self.model_fields_set}
        alone = [name for name in _TYPED if name in given and not (self.source and name.startswith("history"))]
        if alone and not self.tables:
            raise ValueError(f"the option {alone[0]} goes with the option table, which is not given")
        if self.shape == "changelog" and (len(self.tables) > 1 or self.schema_changes == "collect"):
            raise ValueError("shape = changelog is for one table, and excludes schema-changes = collect")
        if self.tables and "packed" in given:
            raise ValueError("the options packed and table exclude each other")
        return self

    @property
    def security(self) -> Security:
        return Security(self.ssl_ca, self.ssl_cert, self.ssl_key)

    def job_sources(self, etcd: Etcd | None) -> list[JobSource]:
        """Return the sources of DDL jobs; those that are published in etcd need `etcd`."""
        from drainer.schema.history.sources import job_sources  # executors do not need it

        return job_sources(etcd, self.security, history_file=self.history_file, history_url=self.history_url)


KNOWN = frozenset(info.alias or "" for info in SourceOptions.model_fields.values())


def _refusal(problem: ErrorDetails) -> str:
    name, why = "".join(map(str, problem["loc"][:1])), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        close = closest(name, sorted(KNOWN))
        return f"unknown option {name}" + (f" (did you mean {close}?)" if close else "")
    return f"option {name}: {why}" if name else why


_P = ParamSpec("_P")
_T = TypeVar("_T")


def one_line_errors(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a method that Spark calls in a Python process of its own, so that the user sees only the text of the
    drainer's errors.

    Spark puts the whole traceback into its exception, unless this variable of its own is set when it reports one. The
    process ends with the report, so no other traceback is hidden.
    """

    @functools.wraps(method)
    def told(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except BinlogError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return told


SCHEMA = "commit_ts long, start_ts long, pump string, ddl_job_id long, ddl_query string, payload binary"
PACKED_SCHEMA = "pump string, seq int, blob binary"

Batches = Iterator["RecordBatch"]


class BinlogSource(DataSource):  # type: ignore[misc]  # mypy does not follow pyspark
    """Creates the readers of the source."""

    @classmethod
    def name(cls) -> str:
        return "binlog"

    @one_line_errors
    def schema(self) -> StructType | str:
        options = SourceOptions.parse(self.options)
        if options.tables:
            from drainer.spark.typed.reader import schema_for

            return schema_for(options)
        return PACKED_SCHEMA if options.packed else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options)
        if options.planner:
            from drainer.spark.source.executor import PlannedReader

            return PlannedReader(options)
        if options.tables:
            from drainer.spark.typed.reader import ChangesStreamReader

            return ChangesStreamReader(options, schema)
        from drainer.spark.source.stream import StreamReader

        return StreamReader(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        if options.tables:
            from drainer.spark.typed.reader import ChangesBatchReader

            return ChangesBatchReader(options, schema)
        from drainer.spark.source.stream import BatchReader

        return BatchReader(options)
