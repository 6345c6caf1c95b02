"""The state of Delta tables, and commits of the files that executors wrote, through Delta's own transactions in Spark's
JVM. No other module calls Delta's classes. All errors are a DestinationError."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from drainer.lake import files
from drainer.lake.fields import AFTER, ID, IMAGE_IDS, OWN, PHYSICAL, WIDENED, Field, field_json, named_fields, quoted
from drainer.lake.files import Place
from drainer.lake.section import PACKAGE
from drainer.row.partition import PartitionUnknown
from drainer.sink.errors import DestinationDown, DestinationRefused, Fenced
from drainer.spark.errors import SPARK_ERRORS, reason_of, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ID: Final = "delta.columnMapping.maxColumnId"
KEY: Final = "tidb.key"
ROLE: Final = "tidb.role"
HISTORY: Final = "history"
_FEATURES: Final = {f"delta.feature.{name}": "supported" for name in ("timestampNtz", "domainMetadata")}
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Of 64 MB and more a file is not written again; above 256 MB another one begins.
    "spark.databricks.delta.optimize.minFileSize": str(64 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(256 << 20),
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # what `keep` says is meant
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # VACUUM has 10000 tasks otherwise
}
_KEPT: Final = "delta.deletedFileRetentionDuration"
_CLOCK_S: Final = 2.0  # times of files may be as much behind
APP_ID: Final = "spark.databricks.delta.write.txnAppId"
VERSION: Final = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version. `schema`, `settings`: of its metadata; `key`: the ids of its key's columns."""

    version: int
    table_id: str
    schema: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Of a mirror all fields, of a history those of its images of new rows."""
        if self.settings.get(ROLE) == HISTORY:
            found = next(one["type"]["fields"] for one in self.schema if one["name"] == AFTER)
        else:
            found = self.schema
        return tuple(map(Field.of_json, found))

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(json.loads(self.settings.get(KEY, "[]")))

    @property
    def max_id(self) -> int:
        return int(self.settings.get(MAX_ID, IMAGE_IDS[AFTER]))


def history_schema(fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the schema of a history whose images have these fields."""
    images = []
    for name, id_ in IMAGE_IDS.items():
        kind = {"type": "struct", "fields": [one.in_image(name).json() for one in fields]}
        images.append(field_json(name, kind, {ID: id_, PHYSICAL: name}))
    return [*named_fields(OWN), *images]


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file that was written. `path`: under its table's directory; `low`, `high`: the first and last
    commit_ts, if it has that column."""

    path: str
    size: int
    rows: int
    low: int = -1
    high: int = -1

    def action(self) -> dict[str, Any]:
        stats: dict[str, Any] = {"numRecords": self.rows}
        if self.high >= 0:
            stats |= {"minValues": {"commit_ts": self.low}, "maxValues": {"commit_ts": self.high}}
            stats["nullCount"] = {"commit_ts": 0}
        add = {"path": self.path, "partitionValues": {}, "size": self.size, "modificationTime": now_ms()}
        return {"add": {**add, "dataChange": True, "stats": json.dumps(stats)}}


def now_ms() -> int:
    return int(time.time() * 1000)


def schema_action(
    table_id: str, schema: Sequence[Mapping[str, Any]], max_id: int, settings: Mapping[str, str]
) -> dict[str, Any]:
    """The action that gives a table this schema."""
    made = {**_FEATURES, **settings, "delta.columnMapping.mode": "name", MAX_ID: str(max_id)}
    # A checkpoint is a Spark job; a start reads at most this many small files of a table's log instead.
    made["delta.checkpointInterval"] = "100"
    text = json.dumps({"type": "struct", "fields": list(schema)})
    if WIDENED in text:  # not before: other engines do not read such tables
        made["delta.enableTypeWidening"] = "true"
    of = {"id": table_id, "format": {"provider": "parquet", "options": {}}, "schemaString": text}
    return {"metaData": {**of, "partitionColumns": [], "configuration": made, "createdTime": now_ms()}}


@dataclass(frozen=True, slots=True)
class _Known:
    """What actions have set at one version of a table. `values`: by the kind of action (`txn`, `domainMetadata`) and
    the application or domain."""

    version: int
    values: dict[tuple[str, str], Any]


# The fields of an action that have its name and its value.
_NAMED: Final = {"txn": ("appId", "version"), "domainMetadata": ("domain", "configuration")}


class Delta:
    """Delta in a session of its own: what it sets does not concern the drainer's other queries."""

    def __init__(self, session: SparkSession, shared: Delta | None = None) -> None:
        """`shared`: another one of this process, whose remembered commits it uses. `new_files`: how many files each
        table got since it was compacted. Raises DestinationRefused if Delta is not among Spark's jars."""
        self.spark = session.newSession()
        self._known: dict[Place, _Known] = {} if shared is None else shared._known
        self.new_files: Counter[Place] = Counter() if shared is None else shared.new_files
        self._synced_s: dict[Place, float] = {}
        self._began_s = time.time()
        for name, value in _SETTINGS.items():
            self.spark.conf.set(name, value)
        jvm: Any = self.spark._jvm
        self._of: Any = jvm.org.apache.spark.sql.delta
        self._scala = jvm.scala
        self._java = jvm.java
        try:
            append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
            # After an operation of another name (ManualUpdate) Delta computes the whole state again with Spark's jobs.
            self._operation = getattr(self._of, "DeltaOperations$StreamingUpdate")(
                append, "tidb-binlog", 0, jvm.scala.Option.empty()
            )
        except (*SPARK_ERRORS, TypeError, AttributeError) as error:  # py4j takes a class that is missing for a package
            raise DestinationRefused(
                f'Spark has no Delta: leave spark.jars.packages in [spark.conf] out, or add "{PACKAGE}" to it, or the '
                f"jars to spark.jars"
            ) from error

    def state(self, path: Place, version: int | None = None) -> TableState | None:
        """Return the table's state, the newest or that of a version; None if there is no table."""
        with errors(path):
            snapshot = self._snapshot(path, version)
            if snapshot.version() < 0:
                return None
            found = json.loads(snapshot.metadata().json())["metaData"]
        schema = json.loads(found["schemaString"])["fields"]
        return TableState(snapshot.version(), found["id"], schema, found.get("configuration", {}))

    def committed(self, path: Place, app: str, version: int | None = None) -> int:
        """Return the version up to which `app` has committed to the table, at this version of the table or the newest;
        -1: it has not."""
        with errors(path):
            return int(self._named_value(path, self._snapshot(path, version), "txn", app, -1))

    def domain(self, path: Place, name: str) -> tuple[int, str | None]:
        """Return a table's version, and its text of this name."""
        with errors(path):
            snapshot = self._snapshot(path)
            return int(snapshot.version()), self._named_value(path, snapshot, "domainMetadata", name, None)

    def commit(
        self, path: Place, actions: Sequence[Mapping[str, Any]], *, app: str = "", after: int = -1, version: int = -2
    ) -> int:
        """Commit the actions and return the table's new version. `app`: must have committed up to `after`; `version`:
        of the table that the caller has read; -2: any. Raises Fenced if it is another, or if another writer has
        committed what contradicts."""
        with errors(path):
            transaction = self._log(path).startTransaction()
            if app:
                transaction.readTxn().addOne(app)  # another commit of the same app is a conflict
            committed = self._named_value(path, transaction.snapshot(), "txn", app, -1) if app else after
            read = int(transaction.readVersion())
            if committed != after or version not in (-2, read):
                raise Fenced(f"{path}: another drainer has written to it meanwhile")
            made = self._java.util.ArrayList()
            for one in actions:
                action = self._of.actions.Action.fromJson(json.dumps(one))
                if "metaData" in one:
                    transaction.updateMetadata(action, False)
                else:
                    made.add(action)
            found = self._scala.jdk.javaapi.CollectionConverters.asScala(made).toSeq()
            now = int(transaction.commit(found, self._operation))
            files.sync_commit(path, now)
        self.new_files[path] += sum("add" in one for one in actions)
        before = self._known.pop(path, None)
        if now == read + 1:
            values = dict(before.values) if before is not None and before.version == read else {}
            for one in actions:
                for kind, (name, value) in _NAMED.items():
                    if kind in one:
                        values[kind, one[kind][name]] = one[kind][value]
            self._known[path] = _Known(now, values)
        return now

    def _named_value(self, path: Place, snapshot: Any, kind: str, name: str, default: Any) -> Any:
        """The value of an action by its name. What this process has committed is remembered, because Delta reads the
        state after a commit with Spark's jobs."""
        version, known = int(snapshot.version()), self._known.get(path)
        if known is None or known.version != version:
            known = self._known[path] = _Known(version, {})
        if (kind, name) not in known.values:
            found = snapshot.setTransactions() if kind == "txn" else snapshot.domainMetadata()
            name_of, value_of = _NAMED[kind]
            each = (json.loads(found.apply(at).json())[kind] for at in range(found.size()))
            known.values[kind, name] = {one[name_of]: one[value_of] for one in each}.get(name, default)
        return known.values[kind, name]

    @contextlib.contextmanager
    def as_app(self, path: Place, app: str, version: int) -> Iterator[SparkSession]:
        """A session for one statement, which a table skips if `app` has committed this version to it. One thread at a
        time."""
        before = self._snapshot(path).version()
        self.spark.conf.set(APP_ID, app)
        self.spark.conf.set(VERSION, str(version))
        try:
            yield self.spark
            now = self._snapshot(path).version()
            if now == before + 1:
                self._known[path] = _Known(now, {("txn", app): version})
                self.new_files[path] += 1
        finally:
            for name in (APP_ID, VERSION):
                with contextlib.suppress(*SPARK_ERRORS, OSError):
                    self.spark.conf.unset(name)

    def sync(self, path: Place) -> None:
        """Make what Spark's statements have written to a table durable: Spark does not."""
        now_s = time.time()
        with errors(path):
            files.sync(path, self._synced_s.get(path, self._began_s) - _CLOCK_S)
        self._synced_s[path] = now_s

    def compact(self, path: Place) -> None:
        """Run OPTIMIZE: it replaces small files, and files with many deleted rows, by larger ones."""
        self.new_files.pop(path, None)
        with errors(path):
            self.spark.sql(f"OPTIMIZE delta.{quoted(str(path))}")
        self.sync(path)

    def delete(self, path: Place, where: str) -> None:
        """Run DELETE with this condition, as SQL."""
        with errors(path):
            self.spark.sql(f"DELETE FROM delta.{quoted(str(path))} WHERE {where}")

    def read(self, path: Place, version: int, spark: SparkSession) -> DataFrame:
        """Return the rows that a table had, in this session. `versionAsOf` refuses versions that were made before the
        time for which files are kept, although they were the newest ones until after it."""
        from pyspark.sql import DataFrame

        none, option = self._scala.Option.empty(), self._scala.Option.apply(self._snapshot(path, version))
        filters = self._scala.jdk.javaapi.CollectionConverters.asScala(self._java.util.ArrayList()).toSeq()
        relation = self._log(path).createRelation(filters, option, none, True)
        return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)

    def vacuum(self, path: Place, hours: int) -> None:
        """Run VACUUM: it removes files that no version of the last `hours` needs. It takes the time from the table."""
        state, kept = self.state(path), f"interval {hours} hours"
        with errors(path):
            if state is not None and state.settings.get(_KEPT) != kept:
                self.spark.sql(f"ALTER TABLE delta.{quoted(str(path))} SET TBLPROPERTIES ('{_KEPT}' = '{kept}')")
            self.spark.sql(f"VACUUM delta.{quoted(str(path))} RETAIN {hours} HOURS")

    def _log(self, path: Place) -> Any:
        return self._of.DeltaLog.forTable(self.spark._jsparkSession, str(path))

    def _snapshot(self, path: Place, version: int | None = None) -> Any:
        log, none = self._log(path), self._scala.Option.empty()
        return log.update(False, none, none) if version is None else log.getSnapshotAt(version, none, none, False)


def txn_action(app: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": app, "version": version, "lastUpdated": now_ms()}}


@contextlib.contextmanager
def errors(path: Place) -> Iterator[None]:
    """Turn errors of Spark into those of a destination. Raises PartitionUnknown, too."""
    try:
        yield
    except (*SPARK_ERRORS, OSError) as error:
        text = text_of(error)
        if unknown := re.search(r"PartitionUnknown: (.*)", text):  # raised by a function of `in_partitions`
            raise PartitionUnknown(unknown[1]) from error
        if "Concurrent" in text and "Exception" in text:
            raise Fenced(f"{path}: another writer has committed meanwhile: {reason_of(text)}") from error
        raise DestinationDown(f"{path}: {reason_of(text)}") from error
