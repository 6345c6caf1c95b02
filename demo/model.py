"""What the writer knows it wrote: the shop's tables as plain dictionaries, the expected content of the destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = object
RowDict = dict[str, Value]


@dataclass
class TableModel:
    """One table. `key` names the columns that identify a row; without them rows are counted, not replaced.

    `fsp`: digits of a second's fraction that a time column keeps, 0 where it is not named. `enums`: the names of ENUM
    columns' values, in their order.
    """

    name: str
    columns: list[str]
    key: tuple[str, ...]
    fsp: dict[str, int] = field(default_factory=dict)
    enums: dict[str, Sequence[str]] = field(default_factory=dict)
    rows: dict[tuple[Value, ...], RowDict] = field(default_factory=dict)
    loose: list[RowDict] = field(default_factory=list)
    defaults: RowDict = field(default_factory=dict)

    def identity(self, row: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(row[c] for c in self.key)

    def insert(self, row: RowDict) -> None:
        row = {**self.defaults, **row}
        if not self.key:
            self.loose.append(row)
            return
        identity = self.identity(row)
        assert identity not in self.rows, f"{self.name}: the demo inserted {identity} twice"
        self.rows[identity] = row

    def update(self, old: RowDict, new: RowDict) -> None:
        """Update a row. A writer that does not know a newer column leaves its value unchanged."""
        before = self.rows[self.identity(old)]
        self.delete(old)
        self.insert({**before, **new})

    def delete(self, row: RowDict) -> None:
        if not self.key:
            self.loose.remove(row)
            return
        del self.rows[self.identity(row)]

    def add_column(self, name: str, default: Value) -> None:
        """Add a column as ALTER TABLE ADD COLUMN does: every existing row reads the default."""
        self.columns.append(name)
        self.defaults[name] = default
        for row in [*self.rows.values(), *self.loose]:
            row.setdefault(name, default)

    def all_rows(self) -> list[RowDict]:
        return list(self.rows.values()) if self.key else self.loose
