"""Reads a lake as upstream was at one TSO, in any Spark session with Delta, also for `drainer load -from`. Nothing is
written.

    from drainer.lake.at import at
    tables = at(spark, "/lake", tso)          # and views `shop_orders`, …
    spark.sql("SELECT * FROM shop_orders JOIN shop_customers USING (customer_id)")

Of each mirror the last version at or before the TSO is read, and the changes that its history has between the two are
applied to it. So all tables show one state of upstream, whenever each of them was merged.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from binlog.errors import BinlogError, DecodeError

from drainer.lake import files
from drainer.lake.control import DOMAIN, control_path
from drainer.lake.delta import Delta, TableState, errors
from drainer.lake.fields import INTEGERS, quoted, type_name
from drainer.lake.files import Place
from drainer.lake.history import decoded_of
from drainer.lake.mirror import Range, column_pairs, last_images, same_key, with_multiset
from drainer.lake.section import LakeSection
from drainer.lake.tables import CHANGES, SINCE
from drainer.ranges import upstream
from drainer.ranges.upstream import Border, DefinitionChanged, Source
from drainer.row.layout import published
from drainer.sink.base import TableLoad, TableName
from drainer.sink.errors import DestinationRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


class NotThere(BinlogError):
    """The lake has no state of this TSO."""


def at(
    spark: SparkSession, directory: str | Path, tso: int, *, changefeed: str = "default"
) -> dict[TableName, DataFrame]:
    """Return every table that has a mirror as it was at `tso`, and register it as a view (view_names). Raises
    NotThere if the position is below that TSO, or a mirror has no version as old."""
    root, delta = files.place(directory), Delta(spark)
    mirrors = _mirrors(delta, root, changefeed, tso).items()
    found = {name: _table(spark, delta, root, row, tso)[0] for name, row in mirrors}
    for name, view in view_names(found).items():
        found[name].createOrReplaceTempView(quoted(view))
    return found


def _mirrors(delta: Delta, root: Place, changefeed: str, tso: int) -> dict[TableName, Row]:
    """The newest version at `tso` of each mirror. Raises NotThere."""
    position = _position(delta, root, changefeed)
    if tso > position:
        raise NotThere(f"{root}: its position is {position}, before {tso}; wait until the drainer has reached it")
    control = delta.spark.read.format("delta").load(str(control_path(root, changefeed)))
    rows = control.where(f"until_ts <= {tso} OR path = ''").collect()
    oldest_ts = max((row.until_ts for row in rows if not row.path), default=0)
    if tso < oldest_ts:
        raise NotThere(f"{root}: states before {oldest_ts} have been removed")
    return {(row.schema, row.table): row for row in newest(rows)}


def view_names(tables: Iterable[TableName]) -> dict[TableName, str]:
    """Return the name of each table's view: `<database>_<table>`; if another one has that, `<database>.<table>`."""
    names = {name: "_".join(name) for name in tables}
    count = Counter(name.lower() for name in names.values())
    return {name: view if count[view.lower()] == 1 else ".".join(name) for name, view in names.items()}


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return of each mirror the row with its newest version; none of a mirror whose table has been dropped since."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row.until_ts, row.version < 0, row.version)):
        found[row.path] = row
    return [row for row in found.values() if row.version >= 0]


def position_of(spark: SparkSession, directory: str | Path, *, changefeed: str = "default") -> int:
    """Return the newest TSO that `at` can show. Raises NotThere."""
    return _position(Delta(spark), files.place(directory), changefeed)


def _position(delta: Delta, root: Place, changefeed: str) -> int:
    _, text = delta.domain(control_path(root, changefeed), DOMAIN)
    if text is None:
        raise NotThere(f"{root} has no lake of changefeed {changefeed!r}")
    body = json.loads(text)
    if any(not TableLoad(**one).is_complete for one in body.get("loads", ())):
        raise NotThere(f"{root}: its first load is not complete")
    return int(body["position"]["commit_ts"])


def _table(spark: SparkSession, delta: Delta, root: Place, row: Row, tso: int) -> tuple[DataFrame, TableState]:
    """Return a mirror's rows as of `tso`, and the state of its table (schema, key) at the version in `row`."""
    path, history_path = root / row.path, root / f"{row.path}{CHANGES}"
    history = delta.state(history_path)
    mirror = delta.state(path, row.version)
    if history is None or mirror is None:
        raise NotThere(f"{path}: its version {row.version} is gone")
    since = int(delta.domain(history_path, SINCE)[1] or 0)
    if tso < since:
        raise NotThere(f"{history_path}: changes up to {since} have been removed, so {tso} cannot be shown")
    rows = delta.read(path, row.version, spark)
    changes = spark.read.format("delta").load(str(history_path)).where(Range(row.until_ts, tso).where)
    return with_changes(rows, changes, mirror, history), mirror


def with_changes(rows: DataFrame, changes: DataFrame, mirror: TableState, history: TableState) -> DataFrame:
    """Return a mirror's rows after these changes of its history."""
    pairs = column_pairs(mirror, history)
    if not mirror.key:
        return with_multiset(rows, changes, pairs)
    from pyspark.sql import functions

    last = last_images(changes, pairs, mirror.key).alias("s")
    stays = rows.alias("t").join(last, functions.expr(same_key(pairs, mirror.key)), "left_anti")
    return stays.unionByName(last.where("row IS NOT NULL").selectExpr("row.*"))


_ORDER: Final = "tidb_binlog_order"
_HASH: Final = "tidb_binlog_hash"  # begins the borders of hashes; a load from TiDB has no such borders


class LakeTables:
    """See ranges.load.Origin. A range is one of the key, if that is a single integer, else of hashes of keys or of rows
    without a key. So it has the same rows in each life of a load. `at_ts`: the TSO that the user wants; None: the
    lake's position. One thread uses it."""

    def __init__(self, directory: str, changefeed: str, at_ts: int | None) -> None:
        self._directory, self._root, self._changefeed = directory, files.place(directory), changefeed
        self.address, self._at_ts = f"delta:{self._root}", at_ts
        self.session: Any = None
        self._ts = self.read_bytes = 0
        self._mirrors: dict[TableName, Row] = {}
        self._ordered: dict[int, tuple[DataFrame, Border]] = {}  # of the table that is being read

    def spark_settings(self, given: Mapping[str, str]) -> Mapping[str, str]:
        return LakeSection.model_validate({"dir": self._directory}).spark_settings(given)

    def open(self, ts: int | None) -> int:
        """Raises NotThere, and DestinationRefused if the user wants another TSO."""
        if ts is not None and self._at_ts not in (None, ts):
            raise DestinationRefused(f"the first load is one as of {ts}: continue it without -at")
        with errors(self._root):
            self._delta = Delta(self.session())
            self._ts = ts or self._at_ts or _position(self._delta, self._root, self._changefeed)
            self._mirrors = _mirrors(self._delta, self._root, self._changefeed, self._ts)
        return self._ts

    @contextmanager
    def at(self, ts: int) -> Iterator[LakeTables]:
        with errors(self._root):
            yield self

    def check_ids(self, sources: Mapping[int, Source]) -> None:
        """Raise NotThere for a table that has no mirror."""
        lacking = [one.table for one in sources.values() if (one.schema, one.info.name) not in self._mirrors]
        if lacking:
            what = f"{len(lacking)} tables, such as {lacking[0]}, have no mirror as of {self._ts}: leave them out"
            raise NotThere(f"{self._root}: {what} by syncer.filter, or take another TSO")

    def divided(self, source: Source) -> Iterator[upstream.Range]:
        rows, head = self._rows(source)
        sample = rows.limit(upstream.SAMPLED_ROWS).toArrow()
        size = upstream.rows_of_range([math.ceil(sample.nbytes / max(sample.num_rows, 1))])
        count = math.ceil(rows.count() / size) if sample.num_rows == upstream.SAMPLED_ROWS else 1
        ends: list[Border | None] = [None]
        if count > 1:
            parts = ", ".join(f"{number / count:.12f}D" for number in range(1, count))
            found = rows.selectExpr(f"percentile_approx({_ORDER}, array({parts}), {max(10 * count, 10_000)})").collect()
            ends += [(*head, str(border)) for border in sorted(set(found[0][0]))]
        yield from starmap(upstream.Range, pairwise((*ends, None)))

    def read(self, source: Source, of: upstream.Range) -> Iterator[list[Any]]:
        """Raises DefinitionChanged."""
        if source.info.id not in self._ordered:
            for before, _ in self._ordered.values():
                before.unpersist()
            rows, head = self._rows(source)
            self._ordered = {source.info.id: (rows if of == upstream.Range() else rows.sort(_ORDER).persist(), head)}
        rows, head = self._ordered[source.info.id]
        bounds = [(sign, border) for sign, border in ((">=", of.lower), ("<", of.upper)) if border is not None]
        if any(border[:-1] != head for _, border in bounds):
            raise DefinitionChanged(f"{source.table}: its ranges are not those of {self.address}")
        where = " AND ".join(f"{_ORDER} {sign} {border[-1]}" for sign, border in bounds)
        found = rows.where(where or "true").drop(_ORDER).toArrow()
        self.read_bytes += found.nbytes
        try:
            read = [decoded_of(of, found[at].combine_chunks()) for at, (_, of) in enumerate(source.columns_read)]
        except (DecodeError, pa.ArrowInvalid, KeyError) as error:
            raise DefinitionChanged(f"{source.table}: a value in {self.address} is not of its type: {error}") from error
        yield source.ruled(read, found.num_rows)

    def _rows(self, source: Source) -> tuple[DataFrame, Border]:
        """Return the columns of `columns_read` and _ORDER, whose values divide the table; and the start of borders."""
        row = self._mirrors[source.schema, source.info.name]
        rows, mirror = _table(self._delta.spark, self._delta, self._root, row, self._ts)
        fields = {one.column_id: one for one in mirror.fields}
        kinds = {one.id: type_name(one.type, one.name) for one in published(source.info)}
        read = [one.id for one in source.codec.layout.targets if one.id in kinds]
        if not {*read} <= {*fields} or any(kinds.get(id_) != one.type for id_, one in fields.items()):
            raise DefinitionChanged(f"{source.table}: its columns in {self.address} as of {self._ts} are others")
        key = [fields[id_] for id_ in mirror.key]
        if len(key) == 1 and key[0].type in INTEGERS:
            order, head = f"CAST({quoted(key[0].name)} AS BIGINT)", Border()
        else:
            order, head = f"xxhash64({', '.join(quoted(one.name) for one in key or mirror.fields)})", (_HASH,)
        columns = [f"{quoted(fields[id_].name)} AS c{id_}" for id_ in read]
        return rows.selectExpr(*columns, f"{order} AS {_ORDER}"), head
