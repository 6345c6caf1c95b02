"""A Spark session with Delta, and recordings in a lake."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import Tp

from drainer.lake.at import newest
from drainer.lake.control import control_path
from drainer.lake.section import LakeSection
from drainer.lake.sink import LakeSink
from drainer.schema.history.base import JobHistory
from scripts.maven_files import entries, folder_of
from tests.golden.compare import split_name
from tests.support.capture import CaptureSet
from tests.support.change_replay import replay_binlogs
from tests.support.row_case import INT, TEXT, table, transaction
from tests.support.schema_case import ddl, job, ts
from tests.support.servers import ROOT, missing

JARS = ROOT / "scripts" / "jars" / "delta-4.4.0.txt"
S3A = JARS.with_name("s3a-3.5.0.txt")


@contextlib.contextmanager
def delta_session(folder: Path, of: str = "x", **conf: str) -> Iterator[Any]:
    """A session with two cores and Delta, for a lake at `of`. Code is interpreted: to compile it takes longer than to
    run it once."""
    from drainer.spark.startup.jvm_launch import start_jvm
    from drainer.spark.startup.session import open_session, stop_session

    fast = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
    fast |= {"spark.sql.shuffle.partitions": "1", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    own = {"spark.jars": jars() + (f",{jars(S3A)}" if "://" in of else ""), **fast, **conf}
    settings = {**LakeSection.model_validate({"dir": of}).spark_settings(own), **own}
    session = open_session(start_jvm(master="local[2]", output=folder / "spark.log", conf=settings))
    yield session
    stop_session(session)


def jars(listed: Path = JARS) -> str:
    """Delta's jars or those of another list, as Spark's setting spark.jars."""
    found = sorted(folder_of(listed).glob("*.jar"))
    if len(found) != len(entries(listed)):
        missing(f"{listed.stem} is not there: scripts/need.sh {listed.stem.partition('-')[0]}")
    return ",".join(map(str, found))


def lake(directory: Path | str, session: Any, **settings: Any) -> LakeSink:
    """A lake that merges when it is told to."""
    sink = LakeSink(LakeSection(dir=str(directory), merge_interval=timedelta(hours=1), **settings))
    sink.session = lambda: session
    return sink


def differences(session: Any, directory: Path, capture: CaptureSet) -> list[str]:
    """A line for each mirror that is missing, or has other rows than upstream's table."""
    found = []
    control = session.read.format("delta").load(str(control_path(directory, "golden")))
    paths = {(row.schema, row.table): row.path for row in newest(control.collect())}
    for name, expected in capture.tables("expected").items():
        if expected.get("kind"):
            continue
        path = paths.get(split_name(name, expected))
        if path is None:
            found.append(f"{name} is missing")
            continue
        mirror = session.read.format("delta").load(str(directory / path))
        places = [(expected["columns"].index(field.name), field.dataType.typeName()) for field in mirror.schema]
        wanted = Counter(tuple(value_of(kind, row[place]) for place, kind in places) for row in expected["rows"])
        kinds = [kind for _, kind in places]
        have = Counter(tuple(map(plain, kinds, row)) for row in mirror.collect())
        if have != wanted:
            found.append(f"{name}: missing {list(wanted - have)[:2]}; more {list(have - wanted)[:2]}")
    return found


def read_otherwise(session: Any, directory: Path) -> tuple[list[str], int]:
    """Read all tables of a lake by Spark and by delta-rs: the paths of those with other rows, and how many are alike.
    delta-rs does not read tables of which a column was widened, and does not find paths that URLs escape."""
    from deltalake import DeltaTable, QueryBuilder

    unlike, alike = [], 0
    for path in sorted(log.parent for log in directory.rglob("_delta_log") if quote(str(log)) == str(log)):
        table = DeltaTable(path.as_uri())
        if "typeWidening" in (table.protocol().reader_features or ()):
            continue
        rows = session.read.format("delta").load(str(path))
        kinds = [field.dataType.typeName() for field in rows.schema]
        wanted = Counter(repr(list(map(_plain, kinds, row))) for row in rows.collect())
        found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t")).to_pylist()
        have = Counter(repr(list(map(_plain, kinds, row.values()))) for row in found)
        alike += have == wanted
        unlike += [] if have == wanted else [str(path.relative_to(directory))]
    return unlike, alike


def _plain(kind: str, value: Any) -> Any:
    if kind == "struct" and value is not None:
        value = value if isinstance(value, dict) else value.asDict()
        return {name: _plain("", one) for name, one in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    found = plain(kind, value)
    if isinstance(found, Decimal):  # delta-rs leaves out zeros at the end
        text = f"{found:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return found


def value_of(kind: str, text: Any) -> Any:
    """The value of a recording's text under a type of Spark."""
    if text is None:
        return None
    if isinstance(text, dict):
        data = bytes.fromhex(text["hex"])
        return data if kind == "binary" else int.from_bytes(data, "big")
    if kind in ("date", "timestamp", "timestamp_ntz"):
        return None if "-00" in text or text.startswith("0000") else datetime.fromisoformat(text).isoformat()
    if kind in ("byte", "short", "integer", "long", "decimal"):
        return Decimal(text)
    if kind in ("float", "double"):
        return plain(kind, float(text))
    return text


def plain(kind: str, value: Any) -> Any:
    """A value that Spark returns as `value_of` does; of a FLOAT six digits, as TiDB shows large ones."""
    if kind == "float" and value is not None:
        return f"{value:.6g}"
    if isinstance(value, (int, Decimal)):
        return Decimal(value)
    if isinstance(value, date):
        whole = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return whole.isoformat()
    return bytes(value) if isinstance(value, bytearray) else value


class Story:
    """A table with a key and one without, random transactions, and DDL between them. `binlogs`: in order; `states`:
    commit_ts → table → its rows, sorted."""

    ORDERS = table([("id", INT), ("name", TEXT)], handle="id", table_id=100, name="orders")
    QTY = ColumnInfo(id=3, name="qty", offset=2, type=INT, origin_default="7")
    WIDER = replace(
        ORDERS,
        columns=(replace(ORDERS.columns[0], type=replace(ORDERS.columns[0].type, tp=Tp.LONGLONG)), QTY,
                 replace(ORDERS.columns[1], name="title", offset=2)),
    )  # fmt: skip
    NOTES = table([("a", INT), ("b", TEXT)], table_id=101, name="notes")

    def __init__(self, seed: int) -> None:
        self._chance, self.binlogs, self.states = random.Random(seed), list[bytes](), dict[int, Any]()
        self._orders, self._notes = dict[int, tuple[Any, ...]](), list[tuple[int, str]]()
        columns = tuple(replace(c, offset=n) for n, c in enumerate(self.WIDER.columns))
        wider, again = replace(self.WIDER, columns=columns), replace(self.NOTES, id=102)
        self.jobs = (
            job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "shop")),
            self._job(2, ActionType.CREATE_TABLE, self.ORDERS),
            self._job(3, ActionType.CREATE_TABLE, self.NOTES),
            self._job(4, ActionType.ADD_COLUMN, wider),
            replace(self._job(5, ActionType.TRUNCATE_TABLE, again), table_id=101),
            self._job(6, ActionType.RECOVER_TABLE, replace(self.NOTES, name="old_notes")),
        )
        self._ts = 0
        for number in (1, 2, 3):
            self._ddl(number)
        self._transactions(12, self.ORDERS, self.NOTES, 3)
        self._ddl(4)
        self._orders = {key: (*row, 7) for key, row in self._orders.items()}
        self._state()
        self._transactions(8, wider, self.NOTES, 4)
        self._ddl(5)
        self._old_notes, self._notes = sorted(self._notes), []
        self._state()
        self._transactions(8, wider, again, 5)
        self._ddl(6)
        self.states[ts(self._ts)]["old_notes"] = self._old_notes

    @staticmethod
    def _job(number: int, kind: ActionType, info: TableInfo) -> Job:
        return job(number, kind, number, schema_id=1, table_id=info.id, table_info=info, finished_ts=ts(9999))

    def _ddl(self, number: int) -> None:
        self._ts += 1
        self.binlogs.append(bytes(ddl(ts(self._ts), number, f"job {number}").payload))
        self._state()

    def _state(self) -> None:
        orders = sorted((key, *row) for key, row in self._orders.items())
        self.states[ts(self._ts)] = {"orders": orders, "notes": sorted(self._notes)}

    def _transactions(self, count: int, orders: TableInfo, notes: TableInfo, version: int) -> None:
        for _ in range(count):
            self._ts += 1
            changes = [*self._order(orders), *self._note(notes)]
            self.binlogs.append(
                transaction(changes, commit_ts=ts(self._ts), start_ts=ts(self._ts) - 1, version=version)
            )
            self._state()

    def _order(self, info: TableInfo) -> Iterator[Any]:
        key, name = self._chance.randrange(6), self._chance.choice("xyz")
        with_qty = len(info.columns) == 3
        row = (name, self._chance.randrange(3)) if with_qty else (name,)

        def image(key: int, row: tuple[Any, ...]) -> dict[int, Any]:
            return {1: key, 2: row[0].encode(), **({3: row[1]} if with_qty else {})}

        was = self._orders.pop(key, None)
        if was is None:
            yield info, ("insert", {}, image(key, row))
        elif self._chance.random() < 0.3:
            yield info, ("delete", image(key, was), {})
            return
        elif self._chance.random() < 0.3 and key + 10 not in self._orders:  # the key changes
            yield info, ("update", image(key, was), image(key + 10, row))
            key += 10
        else:
            yield info, ("update", image(key, was), image(key, row))
        self._orders[key] = row

    def _note(self, info: TableInfo) -> Iterator[Any]:
        note = (self._chance.randrange(2), self._chance.choice("pq"))
        image = {1: note[0], 2: note[1].encode()}
        if note in self._notes and self._chance.random() < 0.5:
            self._notes.remove(note)
            yield info, ("delete", image, {})
        else:
            self._notes.append(note)
            yield info, ("insert", {}, image)

    def replay(self, sink: LakeSink, edges: Sequence[int]) -> None:
        """Bring the lake from its position to the last of the edges, by batches that end there, in all ways."""
        replay_binlogs(sink, self.binlogs, JobHistory(self.jobs), edges, initial_ts=0)


class Partitions:
    """A table with partitions and one without, which exchange rows; then partitions are dropped and emptied.
    `binlogs`: in order; `rows`: of both at the end."""

    def __init__(self) -> None:
        def parted(*ids: int) -> TableInfo:
            bounds = zip(ids, ("p0", "p1"), ("10", "20"), strict=False)
            found = tuple(PartitionDefinition(id_, name, less_than=(bound,)) for id_, name, bound in bounds)
            parts = PartitionInfo(PartitionType.RANGE, "`id`", definitions=found)
            return replace(table(columns, handle="id", table_id=200, name="parted"), partition=parts)

        columns = [("id", INT), ("name", TEXT)]
        first, exchanged = parted(201, 202), parted(210, 202)
        dropped, emptied = parted(210), parted(220)
        plain = table([("id", INT), ("NAME", TEXT)], handle="id", table_id=210, name="plain")
        plain = replace(plain, columns=tuple(replace(one, id=one.id + 4) for one in plain.columns))
        moved = replace(plain, id=201)
        self.jobs = (
            job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "shop")),
            self._job(2, ActionType.CREATE_TABLE, first),
            self._job(3, ActionType.CREATE_TABLE, plain),
            replace(self._job(4, ActionType.EXCHANGE_TABLE_PARTITION, exchanged), table_id=210),
            self._job(5, ActionType.DROP_TABLE_PARTITION, dropped),
            self._job(6, ActionType.TRUNCATE_TABLE_PARTITION, emptied),
        )
        self.binlogs = [self._ddl(at, number) for at, number in ((1, 1), (2, 2), (3, 3), (6, 4), (8, 5), (9, 6))]
        self.binlogs[3:3] = [self._rows(4, 3, first, 1, 5, 12, 15), self._rows(5, 3, plain, 2, 3)]
        self.binlogs.insert(6, self._rows(7, 4, exchanged, 4, 13))
        self.binlogs.append(self._rows(10, 6, moved, 6))
        self.binlogs.append(self._rows(11, 6, emptied, 7))
        self.rows = {"parted": [(7, "n7")], "plain": [(1, "n1"), (5, "n5"), (6, "n6")]}
        self.rows_before_last_ddl = {"parted": [(2, "n2"), (3, "n3"), (4, "n4")], "plain": [(1, "n1"), (5, "n5")]}

    _job = staticmethod(Story._job)

    @staticmethod
    def _ddl(at: int, number: int) -> bytes:
        return bytes(ddl(ts(at), number, f"job {number}").payload)

    @staticmethod
    def _rows(at: int, version: int, info: TableInfo, *ids: int) -> bytes:
        id_, name = (one.id for one in info.columns)
        changes = [(info, ("insert", {}, {id_: key, name: f"n{key}".encode()})) for key in ids]
        return transaction(changes, commit_ts=ts(at), start_ts=ts(at) - 1, version=version)

    def replay(self, sink: LakeSink) -> None:
        replay_binlogs(sink, self.binlogs, JobHistory(self.jobs), [ts(5), ts(7), ts(9), ts(11)], initial_ts=0)
