"""One table's rows as one destination wants them. See program.py for the fast way and general.py for the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NoReturn

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.types import Tp

from drainer.batch.work import Key, Kind, Literals, Match, TableShape
from drainer.row.family import Family
from drainer.row.form import Dialect, Form
from drainer.row.general import GeneralReader
from drainer.row.key import normal
from drainer.row.layout import Layout, layout_of
from drainer.row.program import (
    UNUSUAL,
    CellPrograms,
    Cells,
    Deleted,
    FoldPrograms,
    Inserted,
    Updated,
    cell_programs,
    fold_programs,
)
from drainer.row.text import row_text
from drainer.schema.errors import ColumnGoing, UnknownColumn
from drainer.schema.view import SchemaView, TableAt


def _general_way(b: bytes, p: int, end: int) -> None:
    """Stands for a program that a table has not."""


_NO_FOLD = FoldPrograms(_general_way, _general_way, _general_way)
_NO_CELLS = CellPrograms(_general_way, _general_way, _general_way)


@lru_cache(maxsize=2048)
def _compiled(at: TableAt, dialect: Dialect) -> tuple[Layout, GeneralReader, FoldPrograms, CellPrograms]:
    layout = layout_of(at, dialect)
    reader = GeneralReader(layout)
    if dialect == "carrier" or any(target.old_column_id for target in layout.targets):
        return layout, reader, _NO_FOLD, _NO_CELLS
    if layout.key.columns:
        return layout, reader, fold_programs(layout), _NO_CELLS
    return layout, reader, _NO_FOLD, cell_programs(layout)


class Codec:
    """Rows of one (table id, schema_version) under one view.

    Where the table folds, `insert`, `update` and `delete` give keys and rows (see program.py); else use the `*_cells`
    methods and `literals`. Every method raises DecodeError naming table and commit_ts, UnknownColumn or ColumnGoing.
    """

    def __init__(self, at: TableAt, schema_version: int, view: SchemaView, dialect: Dialect) -> None:
        self.layout, self._general, self.programs, self._cell_programs = _compiled(at, dialect)
        self.insert_program, self.update_program, self.delete_program = self.programs
        self.dialect = dialect
        self.shape = shape_of(at, self.layout)
        self._at = at
        self._view = view
        self._schema_version = schema_version
        self._lax = schema_version != at.at_version or at.at_version != at.current_version
        self._forms = tuple(t.form for t in self.layout.targets)

    # The general way, for the fold: what a program returned None for.

    def insert(self, b: bytes, p: int, end: int, commit_ts: int) -> Inserted:
        return self._folded(self._cells(Kind.INSERT, b[p:end], commit_ts)[0], commit_ts)

    def update(self, b: bytes, p: int, end: int, commit_ts: int) -> Updated:
        old, new = self._cells(Kind.UPDATE, b[p:end], commit_ts)
        return (*self._key(old, commit_ts), *self._folded(new, commit_ts))

    def delete(self, b: bytes, p: int, end: int, commit_ts: int) -> Deleted:
        return self._key(self._cells(Kind.DELETE, b[p:end], commit_ts)[0], commit_ts)

    def _folded(self, cells: Cells, commit_ts: int) -> Inserted:
        key, image = self._key(cells, commit_ts)
        return key, image, row_text(self._forms, cells) if self.dialect == "mysql" else cells

    def _key(self, cells: Cells, commit_ts: int) -> Deleted:
        key = self.layout.key
        image = tuple([cells[n] for n in key.columns])
        if None in image:
            self._fail(DecodeError("key", offset=0, detail=f"{key.name} has a NULL"), commit_ts)
        compared = tuple([normal(c, s) for c, s in zip(image, key.same, strict=True)])
        return compared[0] if len(compared) == 1 else compared, image if key.imaged else None

    # Whole rows, for what must stay in order.

    def cells(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Cells, ...]:
        """Cells of an insert or delete (one tuple) or an update (old, new), the quick way where the table has it."""
        programs = self._cell_programs
        try:
            if kind is Kind.UPDATE:
                both = programs.update(row, 0, len(row))
                if both is not None:
                    return both
            else:
                program = programs.insert if kind is Kind.INSERT else programs.delete
                one = program(row, 0, len(row))
                if one is not None:
                    return (one,)
        except UNUSUAL:
            pass
        return self._cells(kind, row, commit_ts)

    def literals(self, cells: Cells) -> Literals:
        return tuple([form.literal(cell) for form, cell in zip(self._forms, cells, strict=True)])

    def key_row(self, image: Cells) -> Key:
        """The key's cells as a destination matches them: `(1,'a')`, or a tuple."""
        if self.dialect != "mysql":
            return image
        return row_text(tuple(self._forms[n] for n in self.layout.key.columns), image)

    def _cells(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Cells, ...]:
        reader = self._general

        def check(column_id: int, values: Mapping[int, Datum]) -> None:
            coming = self._view.upcoming_columns.get((self._at.table_id, column_id))
            if coming is not None and coming.may_precede_ddl(values.get(column_id), values):
                return
            if column_id in self._at.current.columns_by_id:
                if not self.shape.foldable and (self._at.table_id, column_id) in self._view.columns_being_dropped:
                    raise ColumnGoing(
                        table_id=self._at.table_id,
                        column_id=column_id,
                        schema_version=self._schema_version,
                        commit_ts=commit_ts,
                    )
            elif not self._view.leaves_out(self._at.table_id, column_id, self._schema_version):
                raise UnknownColumn(
                    table_id=self._at.table_id,
                    column_id=column_id,
                    schema_version=self._schema_version,
                    commit_ts=commit_ts,
                )

        try:
            if kind is Kind.INSERT:
                return (reader.insert(row, check, self._lax),)
            if kind is Kind.UPDATE:
                return reader.update(row, check, self._lax)
            return (reader.delete(row, check, self._lax),)
        except DecodeError as err:
            self._fail(err, commit_ts)

    def _fail(self, err: DecodeError, commit_ts: int) -> NoReturn:
        place = f"`{self.shape.schema}`.`{self.shape.table}` (table id {self._at.table_id}, commit_ts {commit_ts})"
        raise DecodeError(f"row of {place}: {err.what}", offset=err.offset, detail=err.detail) from None


def shape_of(at: TableAt, layout: Layout) -> TableShape:
    """What a destination must know of the table as it is now."""
    return TableShape(
        table_id=layout.table_id,
        schema=at.schema,
        table=at.current.name,
        columns=tuple(t.name for t in layout.targets),
        key=layout.key.columns,
        why_ordered=layout.key.why,
        secondary_unique=layout.key.others,
        match=tuple(_match(t.form) for t in layout.targets),
        collations=tuple(_collation(t.form) for t in layout.targets),
        upserts=at.current.upserts,
        row_key=layout.key.row_key,
        unique=layout.key.unique,
        fractions=tuple(_fraction(t.form) for t in layout.targets),
        families=tuple(t.form.family.value for t in layout.targets),
    )


def _fraction(form: Form) -> int:
    has_one = form.family in (Family.DECIMAL, Family.DATETIME, Family.TIME)
    return max(form.kind.decimal, 0) if has_one else 0


def _collation(form: Form) -> str:
    if form.family is Family.BYTES:
        return "binary"
    return form.kind.collate if form.family is Family.TEXT else ""


def _match(form: Form) -> Match:
    if form.family is Family.TEXT:
        return Match.BINARY_TEXT
    if form.family is Family.FLOAT and form.kind.tp is Tp.FLOAT:
        return Match.EXACT_FLOAT
    return Match.JSON if form.family is Family.JSON else Match.PLAIN
