"""Changes as Parquet files of history tables, written in executors or in the driver."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.cluster import tso
from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point

from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.texts import decoded_column
from drainer.changes.vector import Ints
from drainer.lake import files
from drainer.lake.delta import File
from drainer.lake.fields import AFTER, BEFORE, DECIMAL, IMAGE_IDS, OWN, Field
from drainer.lake.files import Place
from drainer.protocol.column_text import texts_of
from drainer.protocol.errors import converted
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.rules import mapped
from drainer.sink.base import Receipt, TableName
from drainer.spark.typed.types import column_converter

_SLOT_MS: Final = 64  # changes of so many ms of commit_ts are in one slot
_PLACE_MAX: Final = (1 << 31) - 1  # places of a first load are wider: FirstLoad
_TYPES: Final[Mapping[str, Any]] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(name: str) -> Any:
    """The Arrow type of a type in the lake."""
    found = DECIMAL.fullmatch(name)
    return _TYPES[name] if found is None else pa.decimal128(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table's history, as writers of its files need it. Picklable. `committed_ts`: it has all changes up to this
    commit_ts; `zero_dates_fail`: raise for dates that Spark cannot hold; `key`: ids of the mirror's key, in which NULL
    stands for 0000-00-00 alone: for others it raises, because they would become one row."""

    directory: Place
    fields: tuple[Field, ...]
    committed_ts: int = -1
    zero_dates_fail: bool = False
    key: tuple[int, ...] = ()

    def schema(self) -> Any:
        """The Arrow schema of its files, with physical names."""
        own = [_field(name, arrow_type(kind), at) for at, (name, kind) in enumerate(OWN, 1)]
        return pa.schema([*own, self._image(BEFORE), self._image(AFTER)])

    def _image(self, name: str) -> Any:
        inner = [_field(one.physical, arrow_type(one.type), one.in_image(name).id) for one in self._written]
        return _field(name, pa.struct(inner), IMAGE_IDS[name])

    @property
    def _written(self) -> list[Field]:
        """Columns that are gone are not in new files."""
        return [one for one in self.fields if one.column_id >= 0]

    def rows(self, changes: Changes, schema: Any) -> Any:
        """Return the changes as a table. Raises EncodeError naming table, column and commit_ts."""
        commit_ts = changes.commit_ts.astype(np.int64)
        count = len(changes)
        columns = [
            pa.array([changes.kind.name.lower()]).take(pa.array(np.zeros(count, np.int32))),
            pa.array(commit_ts),
            pa.array((commit_ts >> tso.LOGICAL_BITS) * 1000).cast(schema.field("commit_time").type),
            pa.array(changes.start_ts.astype(np.int64)),
            pa.array((changes.sequence & _PLACE_MAX).astype(np.int32)),
        ]
        for name, image in ((BEFORE, changes.old), (AFTER, changes.new)):
            wanted = schema.field(name).type
            columns.append(pa.nulls(count, wanted) if image is None else self._struct(changes, image, wanted))
        return pa.Table.from_arrays(columns, schema=schema)

    def _struct(self, changes: Changes, image: Columns, wanted: Any) -> Any:
        at = {target.id: n for n, target in enumerate(changes.codec.layout.targets)}
        arrays = []
        for field, of in zip(self._written, wanted, strict=True):
            place = at.get(field.column_id)
            if place is None or image[place] is None:
                arrays.append(pa.nulls(len(changes), of.type))
                continue
            where = f"`{changes.shape.schema}`.`{changes.shape.table}`.`{field.name}`"
            kind, array, fails = changes.column_types[place], image[place], self.zero_dates_fail
            if field.column_id in self.key and kind.type_class in (TypeClass.DATE, TypeClass.DATETIME) and not fails:
                where, fails = f"{where}, of the key of a mirror", True
                array = pc.if_else(pc.equal(array, 0), pa.scalar(None, array.type), array)
            convert = partial(_converted, kind, of.type, fails)
            arrays.append(converted(where, changes.commit_ts, convert, array))
        return pa.StructArray.from_arrays(arrays, fields=list(wanted))


def _field(name: str, kind: Any, id_: int) -> Any:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(id_).encode()})


def _converted(column_type: ColumnType, wanted: Any, zero_dates_fail: bool, array: Any) -> Any:
    """Raises DecodeError for a value that the lake's type cannot hold."""
    try:
        if column_type.type_class is TypeClass.TIME:
            return texts_of(column_type, array, UTC).cast(wanted)
        return column_converter(column_type.kind, zero_dates_fail=zero_dates_fail)(array).cast(wanted)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise DecodeError(f"{column_type.kind.mysql_name} value", offset=0, detail=str(error)) from error


def decoded_of(column_type: ColumnType, column: Any) -> Any:
    """Return a column of the lake as the decoded values that upstream's rows give: the inverse of what is written. NULL
    in a date that is NOT NULL is 0000-00-00. Raises DecodeError or ArrowInvalid, and KeyError for a name that the ENUM
    or SET does not have."""
    kind, of = column_type.kind, column_type.type_class
    if of in (TypeClass.INT, TypeClass.BIT, TypeClass.FLOAT):
        return column.cast(column_type.decoded_type)
    if of is TypeClass.DECIMAL and not pa.types.is_string(column.type):
        return mapped(column, lambda value: f"{value:f}", pa.string())
    if of is TypeClass.ENUM:
        numbers = {name: number for number, name in enumerate(("", *kind.elems))}
        return mapped(column, numbers.__getitem__, pa.uint64())
    if of is TypeClass.SET:
        bits = {name: 1 << at for at, name in enumerate(kind.elems)} | {"": 0}
        return mapped(column, lambda text: sum(bits[name] for name in text.split(",")), pa.uint64())
    if of not in (TypeClass.DATE, TypeClass.DATETIME):
        return decoded_column(column_type, column.cast(pa.binary()))
    if of is TypeClass.DATETIME:
        column = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        column = pc.utf8_slice_codeunits(column, 0, len("0000-00-00 00:00:00") + bool(kind.fsp) * (1 + kind.fsp))
    found = decoded_column(column_type, column.cast(pa.string()).cast(pa.binary()))
    return pc.fill_null(found, 0) if kind.is_not_null else found


@dataclass(frozen=True, slots=True)
class ByTime:
    """See base.Slotting. A history's rows have no order, so any division will do; a transaction stays whole."""

    version: int = 1
    count: int = 999
    is_fixed: bool = False

    def slots_of(self, changes: Changes, slots: int) -> tuple[Ints]:
        times = changes.commit_ts >> np.uint64(tso.LOGICAL_BITS)
        return ((times // np.uint64(_SLOT_MS) % np.uint64(slots)).astype(np.int64),)


def write(segment: ChangeSegment, tables: Mapping[TableName, HistoryTable], stem: str) -> list[tuple[TableName, File]]:
    """Write a segment's changes, one synced file for each table. Raises EncodeError, and DestinationDown for an error
    of the disk."""
    groups: dict[TableName, list[Any]] = {}
    schemas: dict[TableName, Any] = {}
    for changes in segment.changes:
        name = (changes.shape.schema, changes.shape.table)
        table = tables[name]
        begin_ts = table.committed_ts
        chosen = changes.take(changes.commit_ts.astype(np.int64) > begin_ts) if begin_ts >= 0 else changes
        if len(chosen):
            schema = schemas.setdefault(name, table.schema())
            groups.setdefault(name, []).append(table.rows(chosen, schema))
    return [(name, write_file(tables[name].directory, stem, parts)) for name, parts in groups.items()]


def write_file(directory: Place, stem: str, parts: Sequence[Any]) -> File:
    """Write tables of one schema as one synced file of a new name. Raises DestinationDown."""
    table = pa.concat_tables(parts)
    name = f"{stem}-{uuid.uuid4().hex}.parquet"
    size = files.write(directory, name, table)
    if "commit_ts" not in table.column_names:
        return File(name, size, table.num_rows)
    times = np.concatenate([chunk.to_numpy() for chunk in table.column("commit_ts").chunks])
    return File(name, size, table.num_rows, int(times.min()), int(times.max()))


@dataclass(frozen=True, slots=True)
class HistorySlotWriter:
    """See base.SlotWriter. A receipt's `detail`: the files. Files of attempts that no receipt names are not committed;
    they are removed with other files that no version needs."""

    tables: Mapping[TableName, HistoryTable]
    until_ts: int

    def write(self, slot: int, segment: ChangeSegment, retry_for_s: float = math.inf) -> Receipt:
        found = write(segment, self.tables, f"{self.until_ts}-{slot}")
        crash_point("lake.slot_written")
        detail = json.dumps([[*name, asdict(file)] for name, file in found])
        return Receipt(slot, segment.change_count, len(found), 0, detail)


def files_of(receipts: Iterable[Receipt]) -> list[tuple[TableName, File]]:
    """The files that the receipts name."""
    found = [one for receipt in receipts for one in json.loads(receipt.detail or "[]")]
    return [((schema, table), File(**file)) for schema, table, file in found]
