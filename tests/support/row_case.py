"""Tables, rows and served binlogs for tests of decoding and folding, written as TiDB would."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from binlog.envelope import encode_binlog
from binlog.tidb.datum import Datum
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import KeyChange
from drainer.row.codec import Codec, Decoder, Format, written_literals
from drainer.schema.view import SchemaView, TableAt, TableVersions
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.sqlite.format import SQLITE_VALUES

FORMATS: Mapping[str, Format] = {"mysql": SQL_TEXT, "sqlite": SQLITE_VALUES}
BEGIN_TS = 470_607_175_433_584_650
TABLE_ID = 100
INT = FieldType(Tp.LONG, flen=11, decimal=0)
TEXT = FieldType(Tp.VARCHAR, flen=255, charset="utf8mb4", collate="utf8mb4_bin")

Values = Mapping[int, Datum]
# (kind, old values, new values) of one row.
Step = tuple[str, Values, Values]


def not_null(kind: FieldType) -> FieldType:
    return FieldType(
        kind.tp, kind.flag | Flag.NOT_NULL, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems
    )


def table(
    columns: Sequence[tuple[str, FieldType]],
    *,
    unique: Mapping[str, Sequence[str]] | None = None,
    handle: str = "",
    clustered: bool = False,
    table_id: int = TABLE_ID,
    name: str = "t",
) -> TableInfo:
    """Columns get ids 1, 2, …. `unique`: index name → columns; "PRIMARY" is the primary key, clustered if so said.
    `handle`: the integer primary key that is the handle."""
    made = tuple(
        ColumnInfo(
            id=n + 1,
            name=c,
            offset=n,
            type=FieldType(**{**_fields(k), "flag": k.flag | Flag.PRI_KEY | Flag.NOT_NULL}) if c == handle else k,
        )
        for n, (c, k) in enumerate(columns)
    )
    offsets = {c.name: c.offset for c in made}
    indexes = tuple(
        IndexInfo(
            id=n + 1,
            name=index,
            columns=tuple(IndexColumn(p, offsets[p]) for p in parts),
            unique=True,
            primary=index == "PRIMARY",
        )
        for n, (index, parts) in enumerate((unique or {}).items())
    )
    return TableInfo(
        id=table_id,
        name=name,
        columns=made,
        indexes=indexes,
        pk_is_handle=bool(handle),
        is_common_handle=clustered,
    )


def _fields(kind: FieldType) -> dict[str, object]:
    return {name: getattr(kind, name) for name in FieldType.__dataclass_fields__}


def view_of(*tables: TableInfo, schema: str = "db", version: int = 1, settled: int = 1 << 40) -> SchemaView:
    """All tables as of one schema version."""
    made = {t.id: TableVersions(schema, 1, (version,), (t,)) for t in tables}
    return SchemaView(made, {}, 0, settled, None)


def altered(
    old: TableInfo, new: TableInfo, *, unknown_columns: Mapping[tuple[int, int], int] | None = None
) -> SchemaView:
    """`old` at schema version 1, `new` at 2."""
    return SchemaView({new.id: TableVersions("db", 1, (1, 2), (old, new))}, {}, 0, 2, unknown_columns)


def codec_of(info: TableInfo) -> Codec:
    return Codec(TableAt(info.id, "db", info, info, 1, 1), 1, view_of(info))


def decoder_of(*tables: TableInfo) -> Decoder:
    return Decoder(view_of(*tables))


def changes_of(decoder: Decoder, payloads: Iterable[bytes], format_: Format = SQL_TEXT) -> Iterator[KeyChange]:
    """Every row change, one by one, as tables without a key have them."""
    for codec, kind, *images, commit_ts, sequence in decoder.rows(
        payloads, lambda codec: codec.asking_for(range(len(codec.column_types)))
    ):
        old, new = (
            None if cells is None else written_literals(format_, codec, [cells], [commit_ts])[0] for cells in images
        )
        yield KeyChange(codec.shape, kind, old, new, commit_ts, sequence)


def transaction(
    steps: Iterable[tuple[TableInfo, Step]],
    *,
    commit_ts: int,
    start_ts: int = 0,
    version: int = 1,
) -> bytes:
    """One served binlog. Rows of tables without a clustered key get the rowid 1."""
    value = PrewriteValue(version)
    for info, (kind, old, new) in steps:
        if kind == "insert":
            value.insert(info.id, encode_insert(info, new, rowid=1))
        elif kind == "update":
            value.update(info.id, encode_update(info, old, new))
        else:
            value.delete(info.id, encode_delete(info, old))
    return encode_binlog(
        tp=1,
        start_ts=start_ts or commit_ts - 3,
        commit_ts=commit_ts,
        prewrite_key=b"t\x80\x00\x00\x00\x00\x00\x00\x64_r\x80\x00\x00\x00\x00\x00\x00\x01",
        prewrite_value=value.serialize(),
    )


def in_parts(payloads: Iterable[bytes], parts: int, dice: random.Random) -> list[list[bytes]]:
    """Deal binlogs out to parts in their order. Some binlogs are in two parts, as if two pumps had them."""
    found: list[list[bytes]] = [[] for _ in range(parts)]
    for payload in payloads:
        for part in dice.sample(range(parts), dice.randint(1, min(2, parts))):
            found[part].append(payload)
    return found
