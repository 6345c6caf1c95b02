"""A SQLite file holds what the events say, and where they end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType
from hypothesis import given
from hypothesis import strategies as st

from drainer.kafka_consumer.__main__ import Destination
from drainer.kafka_consumer.consumer import resume_of, resume_text
from drainer.kafka_consumer.core import ConsumeError, ConsumerCore, Part, Read, Resume
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Image, RowEvent
from drainer.sink.replay import consumer_settings
from drainer.sink.sqlite.replay import SQLiteReplayer
from tests.support.examples import FEW
from tests.unit.drainer.kafka_check.streams import Stream, image, row_event, streams
from tests.unit.drainer.kafka_consumer.test_core import parts_of

P0 = KafkaPartition("topic", 0)


def part(*rows: RowEvent, ddl: DdlEvent | None = None, at: int = 1) -> Part:
    return Part(rows, ddl, Resume(at, {P0: Read(at, at)}))


def consumer(path: Path) -> Destination:
    return Destination(SQLiteReplayer(path, consumer_settings("kafka-consumer")))


def opened(path: Path) -> Destination:
    destination = consumer(path)
    destination.open()
    return destination


def contents(path: Path, table: str = "db.t") -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute(f'SELECT * FROM "{table}"').fetchall())
    finally:
        connection.close()


def update(old: Image, new: Image) -> RowEvent:
    return RowEvent(Change.UPDATE, 5, "db", "t", old=old, new=new)


@FEW
@given(data=st.data(), stream=streams())
def test_sqlite_file_holds_every_row_once_after_any_restart(
    data: st.DataObject, stream: Stream, tmp_path: Path
) -> None:
    """The stream's changes need not fit one another: a put row is there, a removed one is not."""
    path = tmp_path / "rows.db"
    path.unlink(missing_ok=True)
    events = {topic_partition: list(events) for topic_partition, events in stream.partitions.items()}
    for life in range(21):
        with closing(consumer(path)) as destination:
            resume = destination.open()
            core = ConsumerCore(events, resume)
            at = {topic_partition: resume.reads.get(topic_partition, Read(0, 0)).offset for topic_partition in events}
            for _ in range(data.draw(st.integers(1, 30)) if life < 20 else 10_000):
                left = [
                    topic_partition for topic_partition in events if at[topic_partition] < len(events[topic_partition])
                ]
                if not left:
                    break
                topic_partition = data.draw(st.sampled_from(left)) if life < 20 else left[0]
                core.add(topic_partition, at[topic_partition], [events[topic_partition][at[topic_partition]]])
                at[topic_partition] += 1
                for due in parts_of(core):
                    destination.apply(due)
        if resume.applied_ts == 1003:
            break
    rows: dict[object, tuple[object, ...]] = {}
    every = [event for of in events.values() for event in of if isinstance(event, RowEvent)]
    for event in sorted(every, key=lambda one: (one.commit_ts, one.change is not Change.DELETE)):
        key = (event.new or event.old or {})["id"].value
        rows.pop(key, None)
        if event.new is not None:
            rows[key] = tuple(column.value for column in event.new.values())
    assert contents(path) == sorted(rows.values())


def test_sqlite_file_applies_insert_upsert_update_and_delete_events(tmp_path: Path) -> None:
    destination = consumer(tmp_path / "rows.db")
    assert destination.open() == Resume()
    with_more: Image = {**image(4, 4), "big": ColumnValue(1 << 63), "raw": ColumnValue(b"\xff")}
    destination.apply(
        part(
            row_event(1, 5, Change.INSERT, value=1),
            row_event(2, 5, Change.UPSERT, value=2),
            row_event(2, 5, Change.UPSERT, value=3),
            update(image(1, 1), image(3, 9)),
            RowEvent(Change.INSERT, 6, "db", "t", new=with_more),
            RowEvent(Change.DELETE, 0, "db", "t", key={"id": ColumnValue(7)}),
        )
    )
    assert contents(tmp_path / "rows.db") == [(2, 3, None, None), (3, 9, None, None), (4, 4, str(1 << 63), b"\xff")]
    destination.close()


def test_sqlite_delete_of_keyless_row_removes_one_row(tmp_path: Path) -> None:
    def plain(value: object) -> Image:
        return {"v": ColumnValue(value), "n": ColumnValue(None)}  # type: ignore[arg-type]

    destination = opened(tmp_path / "rows.db")
    inserts = [RowEvent(Change.INSERT, 5, "db", "t", new=plain(value)) for value in (1, 1, 1, 2)]
    delete = RowEvent(Change.DELETE, 6, "db", "t", old=plain(1))
    destination.apply(part(*inserts, delete, update(plain(2), plain(3))))
    destination.close()
    assert contents(tmp_path / "rows.db") == [(1, None), (1, None), (3, None)]


def test_sqlite_table_with_column_named_rowid_is_updated_right(tmp_path: Path) -> None:
    def plain(value: int) -> Image:
        return {"rowid": ColumnValue(value)}

    destination = opened(tmp_path / "rows.db")
    inserts = [RowEvent(Change.INSERT, 5, "db", "t", new=plain(value)) for value in (1, 1, 2)]
    destination.apply(part(*inserts, RowEvent(Change.DELETE, 6, "db", "t", old=plain(1))))
    destination.close()
    assert contents(tmp_path / "rows.db") == [(1,), (2,)]


def test_drop_database_keeps_tables_of_databases_with_the_same_prefix(tmp_path: Path) -> None:
    destination = opened(tmp_path / "rows.db")
    names = [("db", "t"), ("db.t", "u"), ("db", "t.u")]
    rows = [RowEvent(Change.INSERT, 5, schema, table, new=image(1, 1)) for schema, table in names]
    destination.apply(part(*rows, ddl=ddl(ActionType.DROP_SCHEMA, "DROP DATABASE db", "")))
    destination.close()
    assert contents(tmp_path / "rows.db", "db%2Et.u") == [(1, 1)]
    connection = sqlite3.connect(tmp_path / "rows.db")
    tables = "SELECT COUNT(*) FROM sqlite_master WHERE type='table' AND name LIKE 'db%'"
    assert connection.execute(tables).fetchall() == [(1,)]
    connection.close()


def ddl(kind: ActionType, query: str, table: str = "t") -> DdlEvent:
    return DdlEvent(9, "db", table, query, int(kind))


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        (ddl(ActionType.TRUNCATE_TABLE, "TRUNCATE TABLE t"), {"db.t": [], "db2.t": [(2, 2)]}),
        (ddl(ActionType.DROP_TABLE, "DROP TABLE t"), {"db2.t": [(2, 2)]}),
        (ddl(ActionType.DROP_SCHEMA, "DROP DATABASE db", ""), {"db2.t": [(2, 2)]}),
        (ddl(ActionType.RENAME_TABLE, "RENAME TABLE `db`.`t` TO `db`.`u`", "u"), {"db.u": [(1, 1)], "db2.t": [(2, 2)]}),
        (ddl(ActionType.RENAME_TABLE, "ALTER TABLE t RENAME TO u", "u"), {"db.u": [(1, 1)], "db2.t": [(2, 2)]}),
        (ddl(ActionType.DROP_COLUMN, "ALTER TABLE t DROP COLUMN v"), {"db.t": [(1,)], "db2.t": [(2, 2)]}),
        (ddl(ActionType.MODIFY_COLUMN, "ALTER TABLE t CHANGE v w BIGINT"), {"db.t": [(1, 1)], "db2.t": [(2, 2)]}),
        (ddl(ActionType.ADD_INDEX, "ALTER TABLE t ADD INDEX (v)"), {"db.t": [(1, 1)], "db2.t": [(2, 2)]}),
    ],
)
def test_table_and_database_ddls_change_sqlite_tables(
    event: DdlEvent, wanted: dict[str, list[tuple[int, ...]]], tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    destination = opened(path)
    elsewhere = RowEvent(Change.INSERT, 5, "db2", "t", new=image(2, 2))
    destination.apply(part(row_event(1, 5, Change.INSERT, value=1), elsewhere, ddl=event))
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    connection.close()
    assert {name: contents(path, name) for name in names if name.startswith("db")} == wanted
    destination.apply(part(RowEvent(Change.INSERT, 10, "db", "t", new=image(1, 7)), at=2))  # whatever is left of it
    destination.close()


def test_refused_part_is_rolled_back_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    destination = opened(path)
    destination.apply(part(row_event(1, 5, Change.INSERT)))
    exchange = ddl(ActionType.EXCHANGE_TABLE_PARTITION, "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u")
    with pytest.raises(ConsumeError, match="a SQLite file has no partitions"):
        destination.apply(part(row_event(2, 6, Change.INSERT), ddl=exchange, at=2))
    destination.close()
    assert contents(path) == [(1, 0)]
    assert consumer(path).open().applied_ts == 1


def test_second_consumer_of_one_sqlite_file_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "rows.db")
    with pytest.raises(ConsumeError, match="is being written by another"):
        opened(tmp_path / "rows.db")
    first.apply(part(row_event(1, 5, Change.INSERT)))
    first.close()
    assert contents(tmp_path / "rows.db") == [(1, 0)]


def test_resume_position_reads_back_from_its_text() -> None:
    resume = Resume(7, {P0: Read(1, 3), KafkaPartition("other", 2): Read(0, 0)}, frozenset({(7, 6, "ALTER …", 1)}))
    assert resume_of(resume_text(resume)) == resume


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"applied_ts": 1, "reads": [[1]], "ddls": []}'])
def test_damaged_resume_position_is_refused(text: str) -> None:
    with pytest.raises(ConsumeError, match="the stored position is damaged"):
        resume_of(text)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("ALTER TABLE t DROP a, MODIFY b INT NOT NULL, DROP COLUMN `c d`, DROP COLUMN IF EXISTS e", ["id", "b"]),
        ("ALTER TABLE t DROP INDEX i, DROP PRIMARY KEY, DROP FOREIGN KEY f", ["id", "a", "b", "c d", "e"]),
        ("ALTER TABLE t ALTER COLUMN a DROP DEFAULT, ADD COLUMN z INT DEFAULT 7", ["id", "a", "b", "c d", "e"]),
        ("ALTER TABLE t CHANGE COLUMN a y TEXT, RENAME COLUMN b TO z", ["id", "y", "z", "c d", "e"]),
        ("DROP VIEW t", ["id", "a", "b", "c d", "e"]),
        ("FLASHBACK CLUSTER TO TIMESTAMP '2024-02-29 13:00:00'", ["id", "a", "b", "c d", "e"]),
    ],
)
def test_columns_after_a_ddl(query: str, wanted: list[str], tmp_path: Path) -> None:
    """Only names matter: rows bring everything else."""
    destination = opened(tmp_path / "rows.db")
    row = {name: ColumnValue(1) for name in ("id", "a", "b", "c d", "e")}
    destination.apply(part(RowEvent(Change.INSERT, 5, "db", "t", new=row), ddl=DdlEvent(9, "db", "t", query)))
    destination.close()
    connection = sqlite3.connect(tmp_path / "rows.db")
    assert [name for _, name, *_ in connection.execute('PRAGMA table_info("db.t")')] == wanted
    connection.close()


@pytest.mark.parametrize("what", ["DROP PARTITION p", "TRUNCATE PARTITION p", "EXCHANGE PARTITION p WITH TABLE t"])
def test_a_ddl_that_takes_a_partitions_rows_is_refused(what: str, tmp_path: Path) -> None:
    """Also where the partitioned table has had no row."""
    with pytest.raises(ConsumeError, match=r"the DDL at commit_ts 9: .*a SQLite file has no partitions"):
        opened(tmp_path / "rows.db").apply(part(ddl=DdlEvent(9, "db", "t", f"ALTER TABLE nothing {what}")))


def test_sqlite_file_that_cannot_be_created_is_refused_with_its_path(tmp_path: Path) -> None:
    """One line, as for a file that is no SQLite."""
    (tmp_path / "text").write_text("this is no database, and long enough that SQLite looks at its head" * 9)
    for path in (tmp_path, tmp_path / "text"):
        destination = consumer(path)
        with pytest.raises(ConsumeError, match=f"^{path} cannot be used as an SQLite file: "):
            destination.open()
        destination.close()
