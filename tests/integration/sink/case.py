"""Small builders for work, and a MySQL destination on a test server."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from drainer.batch.work import Folded, KeyChange, Kind, Match, NetRow, Ordered, SegmentWork, TableShape
from drainer.sink.base import Identity
from drainer.sink.mysql.config import ServerConfig, StatementLimits
from drainer.sink.mysql.sink import MySQLSink
from tests.support.net_rows import net_columns
from tests.support.servers import MariaDB

IDENTITY = Identity(cluster_id=7, changefeed="main", node_id="drainer-1")
LOADS = StatementLimits(load_rows_min=1)  # whatever may be written by LOAD DATA is
_ids = itertools.count(100)


def loads(db: MariaDB) -> int:
    """How many LOAD DATA the server has run."""
    return int(db.query("SHOW GLOBAL STATUS LIKE 'Com_load'")[0][1])


def server_config(mariadb: MariaDB, **changes: object) -> ServerConfig:
    options: dict[str, object] = {
        "host": mariadb.host,
        "port": mariadb.port,
        "user": mariadb.user,
        "password": mariadb.password,
        "retry_for_s": 120.0,
        "lock_wait_s": 1,
    }
    return ServerConfig(**{**options, **changes})  # type: ignore[arg-type]


def opened(mariadb: MariaDB, *, at: int = 100, node: str = "drainer-1", **changes: object) -> MySQLSink:
    destination = MySQLSink(server_config(mariadb, **changes))
    destination.open(Identity(7, "main", node), at)
    return destination


def shape(
    table: str,
    columns: str,
    key: Sequence[int] = (0,),
    *,
    unique: Sequence[str] = (),
    match: Sequence[Match] | None = None,
    table_id: int = 0,
    schema: str = "d",
    type_classes: str = "",
) -> TableShape:
    """With `type_classes`, a word for each column, its rows may be loaded (LOADS)."""
    names = tuple(columns.split())
    return TableShape(
        table_id=table_id or next(_ids),
        schema=schema,
        table=table,
        columns=names,
        key=tuple(key),
        secondary_unique=tuple(unique),
        match=tuple(match) if match else (Match.PLAIN,) * len(names),
        type_classes=tuple(type_classes.split()),
    )


def put(key: int, row: bytes, first: Kind = Kind.INSERT, stale: Sequence[bytes] = ()) -> NetRow:
    return NetRow(b"%020d" % key, first, row, tuple(stale))


def gone(key: int, *stale: bytes) -> NetRow:
    return NetRow(b"%020d" % key, Kind.DELETE, None, stale or (b"(%d)" % key,))


def work(after: int, until: int, *folded: Folded, ordered: Sequence[KeyChange] = ()) -> SegmentWork:
    count = sum(len(f.rows) for f in folded) + len(ordered)
    tables = tuple(Folded(one.shape, net_columns(one.rows)) for one in folded)
    return SegmentWork(after, until, tables, Ordered(tuple(ordered)), count, 100 * count)


def change(
    where: TableShape, kind: Kind, *, old: str | None = None, new: str | None = None, ts: int = 1, seq: int = 0
) -> KeyChange:
    """Literals separated by `|`."""

    def split(text: str | None) -> tuple[bytes, ...] | None:
        return tuple(part.encode() for part in text.split("|")) if text is not None else None

    return KeyChange(where, kind, split(old), split(new), ts, seq)


def limits(rows: int = 500, size: int = 1 << 20) -> StatementLimits:
    return StatementLimits(rows, size)


def waits_for_a_row(db: MariaDB) -> bool:
    """Whether some transaction of the server waits for a lock that another one holds."""
    return bool(db.query("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state='LOCK WAIT'"))
