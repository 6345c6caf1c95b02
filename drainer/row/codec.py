"""Decodes rows one by one into decoded values: a Codec those of one table (fast_path.py most of them, GeneralReader the
others), a Decoder those of binlogs, in commit order, with one view of the schema. And the interface by which a
destination converts decoded rows to what it writes (SQL text, SQLite values): once, after folding, a few rows column by
column over lists, many rows over Arrow arrays, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.datum import Datum
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ROWID
from binlog.tidb.types import Tp

from drainer.batch.work import Key, Kind, Literals, Match, Row, TableShape
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from drainer.row.fast_path import Cells, FastReader
from drainer.row.layout import WITH_FRACTION, Layout, Target, key_function, layout_of
from drainer.row.partition import PartitionUnknown, Values, locator
from drainer.row.rules import RowRules
from drainer.row.transaction import Scanned, rows, scan
from drainer.schema.errors import ColumnGoing, TableUnverified, UnknownColumn
from drainer.schema.merged import SOURCE_ID
from drainer.schema.view import Relocation, SchemaView, SkipReason, TableAt

# The general decoder: reads rows in any valid encoding, column by column, into decoded values.
# Called with (column id, row). Raises UnknownColumn for an id that is in no known TableInfo, and ColumnGoing for a
# column that the row lacks because it is being dropped.
CheckColumn = Callable[[int, Mapping[int, Datum]], None]


class GeneralReader:
    """Decodes rows of one layout. DecodeError says what is wrong; the caller adds table and commit_ts.

    `lax`: the row's schema_version is not that of the TableInfo, so a DDL may be running, and an update may lack a
    public column that is being dropped. Otherwise a missing column is an error (D-TR-04)."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known = frozenset(s.id for s in layout.stored) | {t.id for t in layout.targets} | {ROWID}
        self._written = frozenset(s.id for s in layout.stored if s.in_insert)

    def insert(self, row: bytes, check: CheckColumn, lax: bool) -> list[DecodedValue]:
        return self._cells(decode_insert(self._layout.at, row)[1], check)

    def update(self, row: bytes, check: CheckColumn, lax: bool) -> tuple[list[DecodedValue], list[DecodedValue]]:
        old, new = decode_update(row)
        if not old:
            raise DecodeError("updated row", offset=0, detail="no columns")
        for target in self._layout.targets:
            if target.id in self._written and (target.id not in old or target.id not in new):
                check(target.id, old)
                if not lax:
                    detail = f"row data is corrupted: column {target.name} (id {target.id}) is missing"
                    raise DecodeError("updated row", offset=len(row), detail=detail)
        return self._cells(old, check), self._cells(new, check)

    def delete(self, row: bytes, check: CheckColumn, lax: bool) -> list[DecodedValue]:
        values = decode_delete(self._layout.at, row)
        for column_index in self._layout.key.columns:
            target = self._layout.targets[column_index]
            if target.id in self._written and target.id not in values:
                detail = f"key column {target.name} (id {target.id}) is missing"
                raise DecodeError("deleted row", offset=len(row), detail=detail)
        for target in self._layout.targets:
            if target.id in self._written and target.id not in values:
                check(target.id, values)  # older servers do not write a column that is being dropped
        return self._cells(values, check)

    def _cells(self, values: Mapping[int, Datum], check: CheckColumn) -> list[DecodedValue]:
        for column_id in values.keys() - self._known:
            check(column_id, values)
        return [cell_of(target, values) for target in self._layout.targets]


def cell_of(target: Target, values: Mapping[int, Datum]) -> DecodedValue:
    """Return the decoded value of a column of the destination's row."""
    try:
        if target.id not in values:
            if target.old_column_id is not None and target.old_column_id[0] in values:
                return target.inherit(values[target.old_column_id[0]])
            return target.default
        return target.column_type.decoded_value(values[target.id])
    except DecodeError as err:
        raise err.within(f"column {target.name} (id {target.id})") from None


@lru_cache(maxsize=2048)
def _layout(at: TableAt, stored_generated: bool) -> tuple[Layout, GeneralReader]:
    layout = layout_of(at, stored_generated=stored_generated)
    return layout, GeneralReader(layout)


@lru_cache(maxsize=4096)
def _fast_reader(at: TableAt, stored_generated: bool, needed: frozenset[int]) -> FastReader | None:
    """None if a column takes the value of another column."""
    layout = _layout(at, stored_generated)[0]
    return None if any(target.old_column_id for target in layout.targets) else FastReader(layout, needed)


class Codec:
    """Rows of one (table id, schema_version) under one view."""

    def __init__(
        self,
        at: TableAt,
        schema_version: int,
        view: SchemaView,
        needed: Collection[int] | None = None,
        *,
        stored_generated: bool = False,
    ) -> None:
        """`needed`: indexes of the columns of old images to decode; default: those of the fold key, or all.
        `stored_generated`: images have stored generated columns, too."""
        self.layout, self._general = _layout(at, stored_generated)
        self.shape = shape_of(at, self.layout)
        self.column_types = self.layout.column_types
        key = self.layout.key
        self.rules = None if at.applied is None else RowRules(self.layout, at.applied)
        self.needed = frozenset(needed or key.columns or range(len(self.column_types)))
        if self.rules is not None:
            self.needed |= self.rules.columns
        self._asking: dict[frozenset[int], Codec] = {}
        self._fast = _fast_reader(at, stored_generated, self.needed)
        self.key_of = key_function(key, self.column_types)
        self.imaged = key.imaged  # computed once: read for every row
        self.ignored_kinds = view.ignored_kinds.get(at.table_id, frozenset())
        self.at = at
        self._stored_generated = stored_generated
        self._view = view
        self._schema_version = schema_version
        self._lax = schema_version != at.at_version or at.at_version != at.current_version

    def asking_for(self, needed: Collection[int]) -> Codec:
        """A codec of the same rows that decodes at least these columns of old images."""
        if self.needed.issuperset(needed):
            return self
        columns = frozenset(needed)
        found = self._asking.get(columns)
        if found is None:
            found = self._asking[columns] = Codec(
                self.at, self._schema_version, self._view, columns, stored_generated=self._stored_generated
            )
        return found

    def images(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Cells | None, Cells | None]:
        """Return the decoded values of a row's old and new image, before rules, in the order of `shape.columns`; of old
        images only those in `needed`. Raises DecodeError naming table and commit_ts, UnknownColumn or ColumnGoing."""
        fast, end = self._fast, len(row)
        if fast is not None:
            if kind is Kind.UPDATE:
                both = fast.update(row, 0, end)
                if both is not None:
                    return both
            elif kind is Kind.INSERT:
                new = fast.insert(row, 0, end)
                if new is not None:
                    return None, new
            else:
                old = fast.delete(row, 0, end)
                if old is not None:
                    return old, None
        return self._read_general(kind, row, commit_ts)

    def change(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Kind, Cells | None, Cells | None] | None:
        """(kind, old, new) of a row as the destination gets it; None if it gets nothing of it."""
        old, new = self.images(kind, row, commit_ts)
        return (kind, old, new) if self.rules is None else self.rules.row(kind, old, new)

    def key(self, cells: Cells, commit_ts: int) -> object:
        """The key's value as the fold compares it (layout.key_function). DecodeError if a column of the key is NULL."""
        try:
            return self.key_of(cells)
        except DecodeError as error:
            self.fail(error, commit_ts)

    def _read_general(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Cells | None, Cells | None]:
        reader, table_id, version = self._general, self.at.table_id, self._schema_version

        def check(column_id: int, values: Mapping[int, Datum]) -> None:
            coming = self._view.upcoming_columns.get((table_id, column_id))
            if coming is not None and coming.may_precede_ddl(values.get(column_id), values):
                return
            if column_id in self.at.current.columns_by_id:
                if not self.shape.foldable and (table_id, column_id) in self._view.columns_being_dropped:
                    raise ColumnGoing(
                        table_id=table_id, column_id=column_id, schema_version=version, commit_ts=commit_ts
                    )
            elif self.at.applied is not None and column_id in self.at.applied.left_out:
                return
            elif not self._view.skips_column(table_id, column_id, version):
                raise UnknownColumn(table_id=table_id, column_id=column_id, schema_version=version, commit_ts=commit_ts)

        try:
            if kind is Kind.INSERT:
                return None, reader.insert(row, check, self._lax)
            if kind is Kind.UPDATE:
                return reader.update(row, check, self._lax)
            return reader.delete(row, check, self._lax), None
        except DecodeError as err:
            self.fail(err, commit_ts)

    def fail(self, err: DecodeError, commit_ts: int) -> NoReturn:
        """Raise the error as one of a row of this table."""
        table = f"`{self.shape.schema}`.`{self.shape.table}` (table id {self.at.table_id}, commit_ts {commit_ts})"
        raise err.within(f"row of {table}") from None


def shape_of(at: TableAt, layout: Layout) -> TableShape:
    """The destination's view of the current table."""
    return TableShape(
        table_id=layout.table_id,
        schema=at.schema,
        table=at.current.name,
        columns=tuple(t.name for t in layout.targets),
        key=layout.key.columns,
        secondary_unique=layout.key.others,
        match=tuple(Match.ANY if t.id < SOURCE_ID else _match(t.column_type) for t in layout.targets),
        collations=tuple(_collation(t.column_type) for t in layout.targets),
        upserts=at.current.upserts,
        row_key=layout.key.row_key,
        unique=layout.key.unique,
        fractions=tuple(_fraction(t.column_type) for t in layout.targets),
        type_classes=tuple(t.column_type.type_class.value for t in layout.targets),
    )


def _fraction(column_type: ColumnType) -> int:
    return max(column_type.kind.decimal, 0) if column_type.type_class in WITH_FRACTION else 0


def _collation(column_type: ColumnType) -> str:
    if column_type.type_class is TypeClass.BYTES:
        return "binary"
    return column_type.kind.collate if column_type.type_class is TypeClass.TEXT else ""


def _match(column_type: ColumnType) -> Match:
    if column_type.type_class is TypeClass.TEXT:
        return Match.BINARY_TEXT
    if column_type.type_class is TypeClass.FLOAT and column_type.kind.tp is Tp.FLOAT:
        return Match.EXACT_FLOAT
    return Match.JSON if column_type.type_class is TypeClass.JSON else Match.PLAIN


# Rows that arrive after a DDL dropped their partition or moved it to another table. Not on the fast path.
#
# TRUNCATE and DROP PARTITION delete the rows of a partition, EXCHANGE PARTITION moves them to another table;
# transactions of older schema versions that commit after such a DDL wrote into the previous partition.

_log = get_logger(__name__)


class RelocatedRows:
    """Computes the partitions of rows of one table that a transaction wrote before a DDL changed the table's partitions
    and committed after it."""

    def __init__(self, table_id: int, relocation: Relocation) -> None:
        self._table_id = table_id
        self._relocation = relocation
        self._warned = False
        try:
            self._locate = locator(relocation.info)
        except PartitionUnknown as error:
            self._tell(error)
            self._locate = lambda _: None

    def partition(self, kind: Kind, row: bytes) -> int | None:
        """The physical id of the row's partition; None if it cannot be computed: then the row stays in its table.
        Raises DecodeError for a damaged row."""
        try:
            return self._locate(self._values(kind, row))
        except PartitionUnknown as error:
            self._tell(error)
            return None

    def _values(self, kind: Kind, row: bytes) -> Values:
        """The column values of a row image; an update that changes the partition is a delete and an insert."""
        info = self._relocation.info
        try:
            if kind is Kind.INSERT:
                return decode_insert(info, row)[1]
            return decode_delete(info, row) if kind is Kind.DELETE else decode_update(row)[0]
        except DecodeError as err:
            raise err.within(f"row of `{info.name}` (table id {self._table_id})") from None

    def _tell(self, error: PartitionUnknown) -> None:
        if not self._warned:
            _log.warning(
                "cannot compute the partition of a row that arrived after a DDL on it; the row is applied",
                why=str(error),
            )
        self._warned = True


# Identifies a codec under one view, in every process: (table id, schema_version) of the rows; of a table whose
# partitions were moved or dropped (table id, schema_version, 0) if the rows came before, else (table id, the version
# before which they are, their physical id).
Name = tuple[int, ...]
_NO_PARTITION: Final = -1  # in place of a physical id that cannot be computed


class DecodedRow(NamedTuple):
    """`old`: decoded values of the columns that the codec was asked for, None for an insert; `new`: of all columns,
    None for a delete."""

    codec: Codec
    kind: Kind
    old: Cells | None
    new: Cells | None
    commit_ts: int
    sequence: int

    def image(self, number: int) -> Cells:
        """The old image for 0, the new one for 1; empty if the row has none."""
        return (self.new if number else self.old) or ()


class Decoder:
    """Caches the codecs it makes. Not thread-safe."""

    def __init__(self, view: SchemaView, *, stored_generated: bool = False) -> None:
        """`stored_generated`: decoded rows include stored generated columns."""
        self.view = view
        self._stored_generated = stored_generated
        self._codecs: dict[Name, Codec | None] = {}
        self._relocating: set[tuple[int, int]] = set()
        self._relocated: dict[tuple[int, int], RelocatedRows] = {}
        self._unverified: dict[int, tuple[int, int]] = {}

    def codec(self, table_id: int, schema_version: int, commit_ts: int) -> Codec | None:
        """The codec of a table's rows at a schema version; None if they are skipped (SkipReason), or if only
        `codec_of_row` can say.

        Raises TableUnknown naming ids and commit_ts.
        """
        key = (table_id, schema_version)
        if key in self._codecs:
            return self._codecs[key]
        if self.view.must_verify(table_id, schema_version):
            self._unverified.setdefault(table_id, (schema_version, commit_ts))
        made = None
        if self.view.relocation(table_id, schema_version, 0) is not None:
            self._relocating.add(key)
        else:
            made = self._made(self.view.lookup(*key, commit_ts), schema_version)
        self._codecs[key] = made
        return made

    def relocates(self, table_id: int, schema_version: int) -> bool:
        """Whether the partition of such rows decides of which table they are, and if they are skipped. Call it after
        `codec`."""
        return (table_id, schema_version) in self._relocating

    def name_of_row(self, table_id: int, schema_version: int, commit_ts: int, kind: Kind, row: bytes) -> Name:
        """What `codec_named` takes for such a row. Raises DecodeError for a damaged one."""
        relocation = self.view.relocation(table_id, schema_version, commit_ts)
        if relocation is None:
            return table_id, schema_version, 0
        key = table_id, relocation.before_version
        if key not in self._relocated:
            self._relocated[key] = RelocatedRows(table_id, relocation)
        partition = self._relocated[key].partition(kind, row)
        return *key, _NO_PARTITION if partition is None else partition

    def codec_named(self, name: Name, commit_ts: int) -> Codec | None:
        """The codec of rows of this name; None if they are skipped. Raises as `codec`."""
        if len(name) == 2:
            return self.codec(*name, commit_ts)
        if name not in self._codecs:
            self._codecs[name] = self._relocated_codec(name, commit_ts)
        return self._codecs[name]

    def _relocated_codec(self, name: Name, commit_ts: int) -> Codec | None:
        """The codec of the table that rows of a partition belong to now."""
        table_id, version, physical_id = name
        if not physical_id:
            return self._made(self.view.lookup(table_id, version, commit_ts), version)
        relocation = next(one for one in self.view.relocations[table_id] if one.before_version == version)
        partition = None if physical_id == _NO_PARTITION else physical_id
        made = self._made(self.view.relocated(table_id, relocation, partition, commit_ts), version - 1)
        _log.info(
            "rows arrived after a DDL on their partition",
            table_id=table_id,
            physical_id=partition,
            kept=made is not None,
        )
        return made

    def _made(self, at: TableAt | SkipReason, schema_version: int) -> Codec | None:
        if isinstance(at, SkipReason):
            return None
        return Codec(at, schema_version, self.view, stored_generated=self._stored_generated)

    def check_verified(self) -> None:
        """Raises TableUnverified for the tables that must be verified upstream before the rows decoded so far are
        used."""
        if self._unverified:
            version, commit_ts = max(self._unverified.values())
            tables = tuple(sorted(self._unverified))
            raise TableUnverified(table_ids=tables, schema_version=version, commit_ts=commit_ts)

    def codec_of_row(self, table_id: int, schema_version: int, commit_ts: int, kind: Kind, row: bytes) -> Codec | None:
        """Like `codec`, also for rows whose partition was moved or dropped."""
        found = self.codec(table_id, schema_version, commit_ts)
        if found is not None or not self.relocates(table_id, schema_version):
            return found
        return self.codec_named(self.name_of_row(table_id, schema_version, commit_ts, kind, row), commit_ts)

    def rows(
        self, payloads: Iterable[bytes], asking: Callable[[Codec], Codec] = lambda codec: codec
    ) -> Iterator[DecodedRow]:
        """All rows ordered by (commit_ts, sequence), each transaction once (rule 19: one transaction on several pumps).
        `asking`: returns a codec that decodes the columns of old images that the caller needs (Codec.asking_for).

        Raises DecodeError, TableUnknown or UnknownColumn, which name the table and commit_ts.
        """
        for found in in_order([scan(payload) for payload in payloads]):
            commit_ts = found.commit_ts
            for sequence, (version, table_id, kind, row) in enumerate(rows(found)):
                codec = self.codec_of_row(table_id, version, commit_ts, kind, row)
                if codec is not None and kind not in codec.ignored_kinds:
                    codec = asking(codec)
                    found_row = codec.change(kind, row, commit_ts)
                    if found_row is not None:
                        yield DecodedRow(codec, *found_row, commit_ts, sequence)


def in_order(found: Iterable[Scanned]) -> list[Scanned]:
    """Sorts transactions of several pumps into commit order and removes duplicates: a transaction that was sent to two
    pumps has the same start_ts and commit_ts on both (rule 19: one transaction on several pumps)."""
    return sorted({(one.commit_ts, one.start_ts): one for one in found}.values())


class Format(Protocol):
    """Converts decoded values to rows and keys. Small, picklable, without state. `column_types`: one for each given
    column, in the same order. Columns and cells are decoded values; NULL is None. Methods raise DecodeError, which
    names no row, for a value that its column's type cannot have.

    A *packed* row is in bytes, which are stored in an Arrow array and sent between tasks. Keys are packed as rows are,
    from the columns of the key."""

    def rows(self, column_types: Sequence[ColumnType], columns: Sequence[Sequence[Any]]) -> Sequence[Row]:
        """Return one row for each element of the columns. There is at least one column."""
        ...

    def packed_rows(self, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
        """Like `rows`, from Arrow arrays to a binary array of packed rows."""
        ...

    def literals(self, column_type: ColumnType, values: Sequence[Any]) -> Sequence[object]:
        """Return the values of one column in the form that batch.work.Change has."""
        ...

    def key_writer(self, column_types: Sequence[ColumnType]) -> Callable[[Cells], Key]:
        """Return a function from the decoded values of a key's columns to the key."""
        ...

    def pack(self, row: Row) -> bytes: ...

    def unpack(self, packed: bytes) -> Row: ...

    def split(self, packed: bytes) -> Literals:
        """Return the values of a packed row, each as `literals` has it."""
        ...


def written(format_: Format, codec: Codec, cells: Sequence[Cells], commit_ts: Sequence[int]) -> Sequence[Row]:
    """Convert rows decoded by one codec. Raises DecodeError naming table, column and commit_ts of the first row with a
    value that the destination cannot store."""
    try:
        return format_.rows(codec.column_types, list(zip(*cells, strict=True)))
    except DecodeError:
        for one, ts in sorted(zip(cells, commit_ts, strict=True), key=lambda pair: pair[1]):
            _check(format_, codec, one, ts)
        raise


def written_literals(format_: Format, codec: Codec, cells: Sequence[Cells], commit_ts: Sequence[int]) -> list[Literals]:
    """Like `written`, for complete rows of tables whose changes stay in order."""
    try:
        columns = zip(codec.column_types, zip(*cells, strict=True), strict=True)
        return list(zip(*[format_.literals(column_type, column) for column_type, column in columns], strict=True))
    except DecodeError:
        for one, ts in sorted(zip(cells, commit_ts, strict=True), key=lambda pair: pair[1]):
            _check(format_, codec, one, ts)
        raise


def _check(format_: Format, codec: Codec, cells: Cells, commit_ts: int) -> None:
    for target, cell in zip(codec.layout.targets, cells, strict=True):
        try:
            format_.literals(target.column_type, [cell])
        except DecodeError as error:
            codec.fail(error.within(f"column {target.name} (id {target.id})"), commit_ts)


def check_row(format_: Format, codec: Codec, kind: Kind, old: Cells | None, new: Cells | None, commit_ts: int) -> None:
    """Raise DecodeError, naming table and commit_ts, for a row that cannot be written or has no key."""
    if codec.shape.foldable:
        write = format_.key_writer([codec.column_types[at] for at in codec.shape.key])
        for cells in (old, new):
            if cells is not None:
                codec.key(cells, commit_ts)
                try:
                    write([cells[at] for at in codec.shape.key])
                except DecodeError as error:
                    codec.fail(error, commit_ts)
    elif old is not None:
        _check(format_, codec, old, commit_ts)
    if new is not None:
        _check(format_, codec, new, commit_ts)
